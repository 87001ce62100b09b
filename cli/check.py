"""`plan check`: do the limits hold? For CI: a table, JSON, JUnit, exit code 0 or 3."""

from pathlib import Path

from cli.check_view import junit, show_checks
from cli.exit_codes import ExitCode
from cli.github import tell_github
from cli.options import JSON, WORKERS, File, Given, Text, takes_question
from cli.output import Screen, check_force, print_json, with_bar
from ground.files import check_file, write_files
from podplan.checking import checked
from podplan.options import flag, switch
from podplan.workers import executor_of


@takes_question("QUESTION.yaml | MODEL", "A question file, or with --hw a model as for plan search.")
def command(
    given: Given,
    manifest: Text = flag("FILE", "Weigh this deployment instead of searching one."),
    junit_file: Text = flag("FILE", "Write the verdicts as JUnit XML, too.", "--junit"),
    summary: File = flag("FILE", "Append the verdicts as Markdown [GITHUB_STEP_SUMMARY, where that is set]."),
    schema: bool = switch("Print the JSON Schema of question files."),
    workers: Text = WORKERS,
    force: bool = switch("Replace the JUnit file where it exists."),
    json: bool = JSON,
) -> int:
    """Say whether limits hold, by how much, with which confidence, and after a loss.

    \b
    Examples:
      plan check questions.yaml --junit report.xml
      plan check deepseek-r1 --hw cm384 --rate 200/s --ttft 2s --tpot 50ms --confidence 0.9 --survive node
      plan check --manifest out/manifest.yaml --rate 120/s
      plan check --schema > question-file.json

    The keys of a question file are the long flags; `questions:` holds several, and what stands beside it holds for
    all of them. In GitHub Actions what fails is annotated, and the table stands in the step's summary. Exit code 0:
    every limit of every question holds; 3: one does not.
    """
    if schema:
        from podplan.question_schema import question_schema  # for editors and CI alone

        print_json(question_schema())
        return ExitCode.DONE
    typed = given if manifest is None else {**given, "manifest": manifest}
    check_force(force, {"--junit FILE": junit_file})
    report = Path(junit_file) if junit_file is not None else None
    if report is not None:
        check_file(report, force=force, flag="--junit")
    found = checked(typed, with_bar("checking", executor_of(workers)))
    if report is not None:
        write_files({report: junit(found.questions)}, force=force)
    tell_github(found.questions, summary)
    print_json(found.to_dict()) if json else show_checks(Screen(), found.questions)
    return ExitCode.DONE if found.feasible else ExitCode.INFEASIBLE
