"""The version, in the one place that the package, the command and manifests take it from."""

VERSION = "0.1.0"
