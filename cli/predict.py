"""`plan predict`: one configuration, every operator."""

from typing import Annotated

import typer

from cli.output import print_json, print_lines, print_table
from cli.predict_flags import PredictFlags, read_configuration
from cli.predict_render import (
    as_json,
    assumption_lines,
    headline,
    memory_rows,
    operator_rows,
)
from planner.predict import Prediction
from planner.predict import predict as predict_configuration

app = typer.Typer(rich_markup_mode=None)

OPERATOR_COLUMNS = ["operator", "stream", "count", "busy", "exposed", "share", "work", "memory", "message", "bound"]


@app.command()
def predict(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Catalogue name, config.json or model YAML.")],
    hw: Annotated[str, typer.Option("--hw", metavar="HW", help="Catalogue name or hardware YAML.")],
    phase: Annotated[str, typer.Option("--phase", metavar="PHASE", help="decode, prefill or mixed.")],
    strategy: Annotated[str, typer.Option("--strategy", metavar="S", help='Such as "TP=4 + DP=8, EP=32".')],
    batch: Annotated[
        str | None, typer.Option("--batch", metavar="REQUESTS", help="decode: requests per DP rank.")
    ] = None,
    kv_len: Annotated[
        str | None, typer.Option("--kv-len", metavar="TOKENS", help="decode: cached tokens per request [4096].")
    ] = None,
    tokens: Annotated[
        str | None, typer.Option("--tokens", metavar="TOKENS", help="prefill: prompt tokens per device and pass.")
    ] = None,
    isl: Annotated[
        str | None, typer.Option("--isl", metavar="TOKENS", help="prefill, mixed: prompt tokens [4096].")
    ] = None,
    prefix_reuse: Annotated[
        str | None, typer.Option("--prefix-reuse", metavar="SHARE", help="prefill, mixed: cached share of prompts [0].")
    ] = None,
    cache_plane: Annotated[
        str | None,
        typer.Option("--cache-plane", metavar="PLANE", help="prefill: plane that brings reused prefixes [none]."),
    ] = None,
    osl: Annotated[str | None, typer.Option("--osl", metavar="TOKENS", help="mixed: output tokens [1024].")] = None,
    concurrency: Annotated[
        str | None, typer.Option("--concurrency", metavar="REQUESTS", help="mixed: requests in the instance.")
    ] = None,
    max_batched_tokens: Annotated[
        str | None,
        typer.Option("--max-batched-tokens", metavar="TOKENS", help="mixed: tokens of one step per DP rank [8192]."),
    ] = None,
    length_spread: Annotated[
        str | None,
        typer.Option("--length-spread", metavar="SHARE", help="mixed: lengths vary evenly by this share [0]."),
    ] = None,
    requests: Annotated[
        str | None,
        typer.Option(
            "--requests", metavar="N", help="decode, prefill: requests in the instance, spread over DP ranks."
        ),
    ] = None,
    mtp: Annotated[str | None, typer.Option("--mtp", metavar="K", help="Drafted tokens per iteration [0].")] = None,
    mtp_acceptance: Annotated[
        str | None, typer.Option("--mtp-acceptance", metavar="A", help="Acceptance per draft [0.7].")
    ] = None,
    microbatches: Annotated[
        str | None, typer.Option("--microbatches", metavar="M", help="1, 2 or auto [auto].")
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option("--devices", metavar="N", help="Devices of the instance; the strategy must take as many."),
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option("--nodes", metavar="N", help="Size of the cluster, which the strategy must not exceed."),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights", metavar="DTYPE", help="bf16, fp8, int8, int4, mxfp4 or nvfp4 [as shipped, if multiplied]."
        ),
    ] = None,
    kv_dtype: Annotated[
        str | None, typer.Option("--kv-dtype", metavar="DTYPE", help="bf16, fp8 or int8 [bf16].")
    ] = None,
    expert_balance: Annotated[
        str | None,
        typer.Option("--expert-balance", metavar="B", help="perfect, measured, none or a factor [measured]."),
    ] = None,
    expert_skew: Annotated[
        str | None,
        typer.Option(
            "--expert-skew",
            metavar="D",
            help="mixed-domains, single-domain, log-normal=S, power-law=A, or a file of loads [mixed-domains].",
        ),
    ] = None,
    redundant_experts: Annotated[
        str | None,
        typer.Option("--redundant-experts", metavar="N", help="Slots beyond one per expert, or auto [auto]."),
    ] = None,
    shared_experts: Annotated[
        str | None, typer.Option("--shared-experts", metavar="WHERE", help="local, dedicated=N or auto [auto].")
    ] = None,
    engine: Annotated[
        str | None, typer.Option("--engine", metavar="E", help="Engine whose costs are taken [reference].")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Predict one configuration, with every operator.

    \b
    Examples:
      plan predict deepseek-r1 --hw cm384 --phase decode --strategy "DP=320, EP=320" --batch 48 --mtp 1
      plan predict deepseek-r1 --hw h800 --phase prefill --strategy "DP=32, EP=32" --tokens 16k
      plan predict qwen3-32b --hw h100 --phase mixed --strategy TP=4 --concurrency 64 --isl 2048 --osl 512

    Decode and prefill are service times: no waiting for arrivals, no KV transfer. Counts take k and M.
    """
    flags = PredictFlags(
        model=model,
        hw=hw,
        phase=phase,
        strategy=strategy,
        batch=batch,
        kv_len=kv_len,
        tokens=tokens,
        isl=isl,
        prefix_reuse=prefix_reuse,
        cache_plane=cache_plane,
        osl=osl,
        concurrency=concurrency,
        max_batched_tokens=max_batched_tokens,
        length_spread=length_spread,
        requests=requests,
        mtp=mtp,
        mtp_acceptance=mtp_acceptance,
        microbatches=microbatches,
        devices=devices,
        nodes=nodes,
        weights=weights,
        kv_dtype=kv_dtype,
        expert_balance=expert_balance,
        expert_skew=expert_skew,
        redundant_experts=redundant_experts,
        shared_experts=shared_experts,
        engine=engine,
    )
    answer = predict_configuration(read_configuration(flags))
    if json:
        print_json(as_json(flags, answer))
    else:
        _print(flags, answer)


def _print(flags: PredictFlags, answer: Prediction) -> None:
    print_lines(headline(flags, answer))
    print_table(
        OPERATOR_COLUMNS,
        operator_rows(answer),
        title="Operators of one iteration on one device",
        right=["count", "busy", "exposed", "share", "work", "memory", "message"],
    )
    print_table(["memory per device", "bytes", "share"], memory_rows(answer.memory), right=["bytes", "share"])
    print_lines(["Assumed, for it was not given:", *assumption_lines(flags, answer)])
