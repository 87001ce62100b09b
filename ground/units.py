"""Units at the edge: text to SI numbers and back. The scale factors stand here and nowhere else."""

import math
import re

from ground.errors import BadInput

KILO = 1e3
MEGA = 1e6
GIGA = 1e9
TERA = 1e12
PETA = 1e15
MEBI = 1024**2
GIBI = 1024**3
MILLI = 1e-3
MICRO = 1e-6
NANO = 1e-9
MINUTE_SECONDS = 60.0
HOUR_SECONDS = 3600.0
JOULES_PER_KWH = 3.6e6
DAY_SECONDS = 86400.0
YEAR_SECONDS = 365 * DAY_SECONDS
MONTH_SECONDS = YEAR_SECONDS / 12

_DURATIONS = {
    "ns": NANO,
    **dict.fromkeys(("us", "µs", "μs"), MICRO),
    "ms": MILLI,
    "s": 1.0,
    "sec": 1.0,
    "min": MINUTE_SECONDS,
    "h": HOUR_SECONDS,
    "d": DAY_SECONDS,
}
_PERIODS = {unit: seconds for unit, seconds in _DURATIONS.items() if seconds >= 1} | {
    "m": MINUTE_SECONDS,
    "hour": HOUR_SECONDS,
    "day": DAY_SECONDS,
}
_COUNTS = {"": 1.0, "k": KILO, "m": MEGA, "g": GIGA, "b": GIGA}
_SIZES = {"kb": KILO, "mb": MEGA, "gb": GIGA, "tb": 1e12, "pb": 1e15}
_PREFIXES = [(PETA, "P"), (TERA, "T"), (GIGA, "G"), (MEGA, "M"), (KILO, "k"), (1.0, "")]
_POWERS = {"w": 1.0, "kw": KILO, "mw": MEGA}
_MOST = 1e18
FEW_SECONDS = 20  # from here on a bare number of a latency is rather meant in milliseconds
_NUMBER = re.compile(r"\s*([+-]?(?:[0-9][0-9,]*\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*(.*?)\s*", re.DOTALL)

_INDEX = re.compile(r"[0-9]{1,15}")


def parse_duration(text: str, what: str, *, allow_zero: bool = False) -> float:
    """Return the seconds that ``text`` (``50ms``, ``1.5s``, ``3min``) stands for.

    Raises BadInput naming ``what`` for a missing or unknown unit, a negative value or one of 1e18 on, and zero
    unless ``allow_zero``.
    """
    number, unit = _split(text, what, "2s or 500ms")
    if not unit:
        if number == 0 and allow_zero:
            return 0.0
        likely = f"{_plain(number)}ms" if abs(number) >= FEW_SECONDS else f"{_plain(number)}s or 500ms"
        raise BadInput(f"{what}: {_quote(text)} has no unit; write for example {likely}")
    factor = _factor(_DURATIONS, unit, text, what, "ns, us, ms, s, min, h or d")
    # 100us is 1e-4 exactly as written: dividing by 10⁶ rounds once, multiplying by 1e-6 twice.
    seconds = number * factor if factor >= 1 else number / round(1 / factor)
    return _checked(seconds, text, what, allow_zero)


def parse_rate(text: str, what: str, *, allow_zero: bool = False) -> float:
    """Return the events per second that ``text`` (``12.5/s``, ``600/min``) stands for.

    Raises BadInput naming ``what`` for a missing or unknown period, a negative value or one of 1e18 on, and zero
    unless ``allow_zero``.
    """
    number, unit = _split(text, what, "12.5/s or 600/min")
    period = unit.removeprefix("/").strip()
    if period == unit or not period:
        raise BadInput(f"{what}: {_quote(text)} is not a rate; write for example {_plain(number)}/s or 600/min")
    seconds = _factor(_PERIODS, period, text, what, "/s, /min, /h or /d")
    return _checked(number / seconds, text, what, allow_zero)


def parse_power(text: str, what: str) -> float:
    """Return the watts that ``text`` (``900W``, ``1.4kW``) stands for; BadInput naming ``what``, for no unit, too."""
    number, unit = _split(text, what, "900W or 1.4kW")
    if not unit:
        raise BadInput(f"{what}: {_quote(text)} has no unit; write for example 900W or 1.4kW")
    return _checked(number * _factor(_POWERS, unit, text, what, "W or kW"), text, what, False)


def parse_size(text: str, what: str) -> float:
    """Return the bytes that ``text`` (``64GB``, ``8TB``; decimal) stands for; BadInput naming ``what``."""
    number, unit = _split(text, what, "64GB or 8TB")
    return _checked(number * _factor(_SIZES, unit, text, what, "kB, MB, GB, TB or PB"), text, what, False)


def parse_count(text: str, what: str, *, allow_zero: bool = False) -> int:
    """Return the whole number that ``text`` (``4096``, ``128k`` = 128 000, ``1.5M``) stands for.

    The suffixes are decimal. Raises BadInput naming ``what`` for an unknown suffix, a fraction, a negative
    value or one of 1e18 on, and zero unless ``allow_zero``.
    """
    number, unit = _split(text, what, "4096 or 128k")
    factor = _factor(_COUNTS, unit, text, what, "k, M or G")
    value = _checked(number * factor, text, what, allow_zero)
    nearest = round(value)
    if not math.isclose(value, nearest, rel_tol=1e-12):
        raise BadInput(f"{what}: {_quote(text)} is not a whole number; write for example {max(nearest, 1)}")
    return nearest


def number_of(text: str) -> float:
    """Return the number that stands in a text in ASCII; NaN for any other text, ``inf`` and ``1_0`` included."""
    try:
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def read_index(text: str) -> int | None:
    """Return the number of a device, a node, a layer or a column, 0 to 10^15 in ASCII digits; None of another text."""
    return int(text) if _INDEX.fullmatch(text) else None


def format_duration(seconds: float) -> str:
    """Render ``seconds`` with three significant digits and the unit that keeps them near one: ``84.2 ms``."""
    if seconds >= 2 * HOUR_SECONDS:
        return f"{_three(seconds / HOUR_SECONDS)} h"
    if seconds >= 10 * MINUTE_SECONDS:
        return f"{_three(seconds / MINUTE_SECONDS)} min"
    return _scaled(seconds, [(1.0, "s"), (MILLI, "ms"), (MICRO, "us"), (NANO, "ns")])


def format_bytes(size_bytes: float) -> str:
    """Render ``size_bytes`` with three significant digits in decimal units: ``64.4 GB``."""
    return _scaled(size_bytes, [(PETA, "PB"), (TERA, "TB"), (GIGA, "GB"), (MEGA, "MB"), (KILO, "KB"), (1.0, "B")])


def format_rate(per_second: float) -> str:
    """Render a rate with three significant digits: ``12.5/s``, ``1.94k/s``, and ``6/min`` below one per ten seconds."""
    if 0 < abs(per_second) < 0.1:
        return f"{_three(per_second * MINUTE_SECONDS)}/min"
    return f"{format_count(per_second)}/s"


def carried_rate(per_second: float) -> str:
    """Render a rate that is carried like ``format_rate``, never rounded up: asked for as it is printed, it is carried.

    >>> carried_rate(283.99), carried_rate(25.0), carried_rate(0.0836)
    ('283/s', '25/s', '5.01/min')
    """
    return format_rate(rate_down(per_second))


def rate_down(per_second: float) -> float:
    """Return the last rate of three significant digits in the unit that it is printed in."""
    unit = MINUTE_SECONDS if per_second < 0.1 else 1.0
    return rounded_down(per_second * unit) / unit if per_second > 0 else per_second


def format_count(value: float) -> str:
    """Render a count with three significant digits and a decimal suffix: ``4.1k``, ``671G``; below 1000 as it is."""
    return _scaled(value, _PREFIXES, between="")


def format_si(value: float, unit: str) -> str:
    """Render an amount with three significant digits and a decimal prefix to its unit: ``376 TFLOP/s``."""
    return f"{_scaled(value, _PREFIXES)}{unit}"


def rounded_up(value: float) -> float:
    """Return the next value of three significant digits, as it is printed."""
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    return math.ceil(value / step - 1e-9) * step


def rounded_down(value: float) -> float:
    """Return the last value of three significant digits."""
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    return math.floor(value / step + 1e-9) * step


def counted(number: float, thing: str) -> str:
    """Render so many of a thing.

    >>> counted(1, "device"), counted(0.5, "chip"), counted(46573, "column")
    ('1 device', '0.5 chips', '46,573 columns')
    """
    told = f"{int(number):,}" if number == int(number) else f"{number:g}"
    return f"{told} {thing}{'' if number == 1 else 's'}"


def _split(text: str, what: str, example: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise BadInput(f"{what}: {_quote(text)} is not a number with a unit; write for example {example}")
    digits = match.group(1)
    if "," in digits and not re.fullmatch(r"[+-]?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]*)?", digits):
        raise BadInput(f"{what}: {_quote(text)} has a comma where a point belongs; write for example {example}")
    try:
        return float(digits.replace(",", "")), match.group(2)
    except ValueError:
        raise BadInput(f"{what}: {_quote(text)} is not a number with a unit; write for example {example}") from None


def _factor(table: dict[str, float], unit: str, text: str, what: str, accepted: str) -> float:
    factor = table.get(unit.lower())
    if factor is None:
        raise BadInput(f"{what}: {_quote(text)} has the unknown unit {_quote(unit)}; accepted are {accepted}")
    return factor


def _checked(value: float, text: str, what: str, allow_zero: bool) -> float:
    if not abs(value) < _MOST:
        raise BadInput(f"{what}: {_quote(text)} is too large to be meant; give less than 1e18")
    if value < 0:
        raise BadInput(
            f"{what}: {_quote(text)} is negative; give a value {'of zero or more' if allow_zero else 'above zero'}"
        )
    if value == 0 and not allow_zero:
        raise BadInput(f"{what}: {_quote(text)} is zero; give a value above zero")
    return value


def _quote(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _plain(number: float) -> str:
    """The number as the start of an example: positive and short."""
    return f"{abs(number):g}" if 0 < abs(number) < TERA else "2"


def _three(value: float) -> str:
    """Three significant digits without trailing zeros; without an exponent below a million."""
    if value == 0:
        return "0"
    if abs(value) >= MEGA:  # past the largest unit
        return f"{value:.3g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _scaled(value: float, steps: list[tuple[float, str]], between: str = " ") -> str:
    """Render ``value`` with the largest step that it reaches; rounding up to 1000 moves to the step above."""
    if not math.isfinite(value):
        return str(value)
    factor, unit = next(((f, u) for f, u in steps if abs(value) >= f * 0.9995), steps[-1])
    if value == 0 or abs(value) >= MEGA * steps[0][0]:
        factor, unit = next((f, u) for f, u in steps if f == 1.0)
    return f"{_three(value / factor)}{between}{unit}"
