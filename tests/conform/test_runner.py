"""What a case comes to, how long it may take, and what is left when it is over."""

from __future__ import annotations

import asyncio
import socket
import time
from functools import partial

import pytest
from grpc import StatusCode

from pubsubd.conform import runner
from pubsubd.conform.calls import permanent, refused, request_refused, transient, unordered
from pubsubd.conform.case import Differs, Erred, Failed, Hook, NotRun, check
from pubsubd.conform.endpoint import Endpoint, EndpointError
from pubsubd.conform.lab import Lab, Setting, Sub
from pubsubd.conform.runner import STOPPED, Outcome, Runner
from pubsubd.conform.served import Served, StartCommand, StartError, free_port
from tests.conform.support import START_COMMAND, Cases, Notes


async def run(setting: Setting, cases: Cases, **options):
    """The results of all these cases, by id."""
    results = await Runner(setting, cases.all, Notes(), **options).run()
    return {result.case.id: result for result in results}


async def only(setting: Setting, cases: Cases):
    """The outcome and the sentence of the only case there is."""
    (result,) = (await run(setting, cases)).values()
    return result.outcome, result.seen


async def names_left(setting: Setting) -> list[str]:
    """What of this run is still on the server."""
    async with Lab(setting) as lab:
        project = f"projects/{setting.project}"
        topics = (await lab.client.ListTopics(project=project)).topics
        subscriptions = (await lab.client.ListSubscriptions(project=project)).subscriptions
        snapshots = (await lab.client.ListSnapshots(project=project)).snapshots
    return [found.name for found in [*topics, *subscriptions, *snapshots] if setting.run in found.name]


# --- outcomes -----------------------------------------------------------------------------------------------


async def test_a_case_that_returns_has_passed(setting, cases):
    @cases("CT-90")
    async def body(lab):
        sub = await lab.subscription()
        (a,) = await sub.lease()
        await sub.ack(a)
        return "Acked."

    assert await only(setting, cases) == (Outcome.PASS, "Acked.")


@pytest.mark.parametrize(
    ("raised", "outcome"),
    [
        (Failed("Seen."), Outcome.FAIL),
        (Differs("Seen."), Outcome.DIFFERS),
        (NotRun("Seen."), Outcome.NOT_RUN),
        (Erred("Seen."), Outcome.ERROR),
        (ExceptionGroup("", [RuntimeError("no"), Failed("Seen.")]), Outcome.FAIL),
    ],
)
async def test_what_a_case_raises_is_its_outcome(setting, cases, raised, outcome):
    @cases("CT-90")
    async def body(lab):
        raise raised

    assert await only(setting, cases) == (outcome, "Seen.")


async def test_a_condition_that_does_not_hold_fails_the_case(setting, cases):
    @cases("CT-90")
    async def body(lab):
        check(1 == 1, "Not this one.")
        check([] == [1], "Seen.")
        return "Never said."

    assert await only(setting, cases) == (Outcome.FAIL, "Seen.")


async def test_a_case_that_breaks_is_an_error_that_says_where(setting, cases):
    @cases("CT-90")
    async def body(lab):
        return {}["missing"]

    outcome, seen = await only(setting, cases)

    assert outcome is Outcome.ERROR
    assert "KeyError: 'missing'" in seen and "in body, line" in seen


async def test_a_refused_ack_fails_the_case_and_a_refused_preparation_is_an_error(setting, cases):
    @cases("CT-90")
    async def ack(lab):
        sub = await lab.subscription()
        await sub.ack("no such id")

    @cases("CT-91")
    async def preparation(lab):
        await lab.subscription(topic=lab.name("topic"))

    results = await run(setting, cases)

    assert results["CT-90"].outcome is Outcome.FAIL
    assert results["CT-90"].seen.startswith("Acknowledge was refused with INVALID_ARGUMENT (")
    assert results["CT-91"].outcome is Outcome.ERROR
    assert results["CT-91"].seen.startswith("CreateSubscription was refused with NOT_FOUND (")


async def test_an_endpoint_that_does_not_answer_is_an_error(cases):
    @cases("CT-90")
    async def body(lab):
        await lab.client.Acknowledge(subscription="projects/p/subscriptions/s", ack_ids=["x"], timeout=1)

    outcome, seen = await only(Setting(Endpoint(f"127.0.0.1:{free_port()}")), cases)

    assert outcome is Outcome.ERROR
    assert seen.startswith("Acknowledge was refused with UNAVAILABLE")


async def test_a_promise_that_broke_with_the_endpoint_is_an_error(cases, monkeypatch):
    monkeypatch.setattr(runner, "GONE_SECONDS_MAX", 0.1)

    @cases("CT-90")
    async def body(lab):
        raise Failed("The stream ended.")

    address = f"127.0.0.1:{free_port()}"
    outcome, seen = await only(Setting(Endpoint(address)), cases)

    assert outcome is Outcome.ERROR
    assert seen.startswith(f"The endpoint was gone (no gRPC answer from {address}: UNAVAILABLE (")
    assert seen.endswith("Before that was seen: The stream ended.")


async def test_pulls_that_give_nothing_are_not_repeated_without_pause(setting, cases, monkeypatch):
    pulls = []
    pull_now = Sub.pull_now

    async def counted(sub, *arguments):
        pulls.append(time.monotonic())
        return await pull_now(sub, *arguments)

    monkeypatch.setattr(Sub, "pull_now", counted)

    @cases("CT-90")
    async def body(lab):
        await (await lab.subscription()).pull(within=0.5)

    assert await only(setting, cases) == (Outcome.FAIL, "Pull gave 0 of 1 messages in 0.5 s.")
    assert 3 <= len(pulls) <= 8
    # The last one at the end of the time that was given.
    assert pulls[-1] - pulls[0] > 0.45


async def test_a_lost_connection_is_no_refusal(cases):
    expectations = [permanent, transient, unordered, partial(request_refused, StatusCode.INVALID_ARGUMENT)]
    for number, expected in enumerate(expectations, start=90):

        @cases(f"CT-{number}")
        async def body(lab, expected=expected):
            with expected():
                await lab.client.Acknowledge(subscription="projects/p/subscriptions/s", ack_ids=["x"])

    results = await run(Setting(Endpoint(f"127.0.0.1:{free_port()}")), cases)

    for result in results.values():
        assert result.outcome is Outcome.ERROR
        assert result.seen.startswith("Acknowledge was refused with UNAVAILABLE")


async def test_a_case_that_takes_too_long_is_ended(setting, cases):
    @cases("CT-90", seconds_max=0.2)
    async def body(lab):
        await asyncio.sleep(60)

    start = time.monotonic()
    assert await only(setting, cases) == (Outcome.ERROR, "It had not come to its end after 0.2 s.")
    assert time.monotonic() - start < 10


async def test_a_timeout_within_a_case_is_not_taken_for_its_own(setting, cases):
    @cases("CT-90")
    async def body(lab):
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)

    outcome, seen = await only(setting, cases)

    assert outcome is Outcome.ERROR and "TimeoutError" in seen


async def test_a_case_cancelled_from_within_ends_no_other(setting, cases):
    @cases("CT-90")
    async def cancelled(lab):
        raise asyncio.CancelledError

    @cases("CT-91")
    async def other(lab):
        await asyncio.sleep(0.1)
        return "Seen."

    results = await run(setting, cases)

    assert results["CT-90"].outcome is Outcome.ERROR
    assert results["CT-91"].outcome is Outcome.PASS


async def test_a_sentence_is_one_line_that_no_terminal_obeys(setting, cases):
    @cases("CT-90")
    async def body(lab):
        raise Failed("One\n  \x1b[2J\x00line é.")

    assert await only(setting, cases) == (Outcome.FAIL, "One \\x1b[2J\\x00line é.")


async def test_a_refusal_is_checked_where_one_is_expected(setting, cases):
    @cases("CT-90")
    async def answered(lab):
        with refused(StatusCode.NOT_FOUND):
            await lab.topic()

    @cases("CT-91")
    async def other_code(lab):
        with refused(StatusCode.ABORTED):
            await lab.client.GetTopic(topic=lab.name("topic"))

    results = await run(setting, cases)

    assert results["CT-90"].seen == "CreateTopic was answered OK, not refused with NOT_FOUND."
    assert results["CT-91"].seen.startswith("GetTopic was refused with NOT_FOUND (")
    assert {result.outcome for result in results.values()} == {Outcome.FAIL}


async def test_a_long_message_is_cut_in_the_sentence(setting, cases):
    @cases("CT-90")
    async def body(lab):
        await lab.subscription(topic="x" * 3000)

    outcome, seen = await only(setting, cases)

    assert outcome is Outcome.ERROR and len(seen) < 400 and "…)" in seen


# --- hooks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "run_ids"),
    [
        (None, set()),
        ("serve {port}", {"CT-91"}),
        ("serve {port} {datadir}", {"CT-90", "CT-91"}),
        ("serve {port} {admin_port}", {"CT-91", "CT-92"}),
        ("serve {port} {datadir} {admin_port}", {"CT-90", "CT-91", "CT-92", "CT-93"}),
    ],
)
async def test_a_case_without_its_hooks_is_not_run_and_never_passed(setting, cases, command, run_ids):
    for number, needs in enumerate(
        [[Hook.RESTART], [Hook.STOP], [Hook.FAULTS], [Hook.RESTART, Hook.FAULTS]], start=90
    ):

        @cases(f"CT-{number}", needs=needs)
        async def body(lab):
            return "Seen."

    setting.start_command = None if command is None else StartCommand(command)
    results = await run(setting, cases)

    for case_id, result in results.items():
        assert result.outcome is (Outcome.PASS if case_id in run_ids else Outcome.NOT_RUN)
        if case_id not in run_ids:
            assert "--start-cmd" in result.seen or "start command has no {" in result.seen


async def test_a_server_of_its_own_that_cannot_be_had_is_no_pass(setting, cases):
    @cases("CT-90")
    async def body(lab):
        async with lab.own_server():
            return "Never said."

    outcome, seen = await only(setting, cases)

    assert outcome is Outcome.NOT_RUN and "--start-cmd" in seen


# --- order --------------------------------------------------------------------------------------------------


async def test_cases_that_wait_run_at_once_and_loads_by_themselves(setting, cases):
    running: set[str] = set()
    together: dict[str, set[str]] = {}

    def body_of(case_id):
        async def body(lab):
            running.add(case_id)
            await asyncio.sleep(0.2)
            together[case_id] = set(running)
            running.discard(case_id)
            return "Seen."

        return body

    for case_id, alone in (("CT-90", False), ("CT-91", True), ("CT-92", False), ("CT-93", True)):
        cases(case_id, alone=alone)(body_of(case_id))
    results = await run(setting, cases)

    assert "CT-92" in together["CT-90"] or "CT-90" in together["CT-92"]
    assert together["CT-91"] == {"CT-91"} and together["CT-93"] == {"CT-93"}
    assert list(results) == ["CT-90", "CT-91", "CT-92", "CT-93"]


async def test_the_longest_start_first_and_no_more_at_once_than_asked(setting, cases):
    async def body(lab):
        await asyncio.sleep(0.01)
        return "Seen."

    for case_id, seconds in (("CT-90", 1), ("CT-91", 30), ("CT-92", 7)):
        cases(case_id, seconds=seconds)(body)
    notes = Notes()
    await Runner(setting, cases.all, notes, jobs=1).run()

    assert notes.events == [
        (event, case_id) for case_id in ("CT-91", "CT-92", "CT-90") for event in ("started", "finished")
    ]


@pytest.mark.parametrize("passes_at_last", [True, False])
async def test_a_case_that_failed_while_this_side_was_late_gets_one_more_try(setting, cases, passes_at_last):
    tries = []

    @cases("CT-90")
    async def body(lab):
        tries.append(time.monotonic())
        if len(tries) == 1:
            time.sleep(0.7)  # no processor time for anybody here
        if len(tries) == 1 or not passes_at_last:
            raise Failed("Seen instead.")
        return "Seen."

    outcome, seen = await only(setting, cases)

    assert outcome is (Outcome.PASS if passes_at_last else Outcome.FAIL)
    assert seen.startswith("Seen. (Second try: in the first, not passed, this side was 0.") or (
        not passes_at_last and seen.startswith("Seen instead. (Second try")
    )
    assert len(tries) == 2


async def test_a_case_that_failed_in_time_gets_no_other_try(setting, cases):
    tries = []

    @cases("CT-90")
    async def late_and_good(lab):
        time.sleep(0.7)
        return "Seen."

    @cases("CT-91", alone=True)
    async def body(lab):
        tries.append(1)
        raise Failed("Seen instead.")

    results = await run(setting, cases)

    assert (results["CT-90"].seen, results["CT-91"].seen) == ("Seen.", "Seen instead.")
    assert len(tries) == 1


# --- what is left -------------------------------------------------------------------------------------------


async def make_some_of_everything(lab):
    sub = await lab.subscription()
    await sub.snapshot()
    await lab.topic()
    async with Lab(lab.setting) as look:
        assert len(await names_left(look.setting)) == 4


@pytest.mark.parametrize("raised", [None, Failed("Seen."), RuntimeError("broken")])
async def test_all_that_a_case_made_is_deleted(setting, cases, raised):
    @cases("CT-90")
    async def body(lab):
        await make_some_of_everything(lab)
        # Whatever a case does to its connections.
        await lab.disconnect()
        if raised is not None:
            raise raised
        return "Seen."

    one_run = Runner(setting, cases.all, Notes())
    await one_run.run()

    assert await names_left(setting) == []
    assert one_run.left_behind == []


async def test_all_that_a_case_made_is_deleted_when_the_run_is_ended(setting, cases):
    there = asyncio.Event()

    @cases("CT-90")
    async def body(lab):
        await make_some_of_everything(lab)
        there.set()
        await asyncio.sleep(60)

    running = asyncio.create_task(Runner(setting, cases.all, Notes()).run())
    await there.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert await names_left(setting) == []


async def test_a_stopped_run_knows_what_had_come_to_an_end(setting, cases):
    @cases("CT-90")
    async def done(lab):
        return "Seen."

    @cases("CT-91")
    async def amid(lab):
        await asyncio.sleep(60)

    @cases("CT-92", alone=True)
    async def later(lab):
        return "Never said."

    stopped = Runner(setting, cases.all, Notes())
    running = asyncio.create_task(stopped.run())
    while not stopped.results:
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert [(result.case.id, result.outcome, result.seen) for result in stopped.results] == [
        ("CT-90", Outcome.PASS, "Seen."),
        ("CT-91", Outcome.NOT_RUN, STOPPED),
        ("CT-92", Outcome.NOT_RUN, STOPPED),
    ]


@pytest.mark.parametrize("alone", [False, True])
async def test_an_abandoned_run_deletes_nothing_more_and_names_what_is_left(setting, cases, alone):
    made, there = [], asyncio.Event()

    @cases("CT-90", alone=alone)
    async def body(lab):
        made.append(await lab.topic())
        # From now on nobody answers: what listens here never reads.
        lab.endpoint = Endpoint(f"127.0.0.1:{silent.getsockname()[1]}")
        there.set()
        await asyncio.sleep(60)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        abandoned = Runner(setting, cases.all, Notes())
        running = asyncio.create_task(abandoned.run())
        await there.wait()
        start = time.monotonic()
        running.cancel()
        await asyncio.sleep(0.1)
        assert not running.done()
        running.cancel()
        abandoned.abandon()
        with pytest.raises(asyncio.CancelledError):
            await running

    assert time.monotonic() - start < 5
    assert abandoned.left_behind == made


async def test_what_never_was_is_not_left_behind(setting, cases):
    @cases("CT-90")
    async def body(lab):
        await lab.topic()

    setting.run = "a name that is none"
    refused_all = Runner(setting, cases.all, Notes())
    (result,) = await refused_all.run()

    assert result.outcome is Outcome.ERROR
    assert refused_all.left_behind == []


async def test_what_could_not_be_deleted_is_told(setting, cases, monkeypatch):
    monkeypatch.setattr("pubsubd.conform.lab.CLEAN_UP_SECONDS_MAX", 0.5)
    made = []

    @cases("CT-90")
    async def body(lab):
        made.append(await lab.topic())
        lab.endpoint = Endpoint(f"127.0.0.1:{free_port()}")
        return "Seen."

    one_run = Runner(setting, cases.all, Notes())
    await one_run.run()

    assert one_run.left_behind == made
    assert await names_left(setting) == made


# --- servers of a case's own --------------------------------------------------------------------------------


async def test_a_server_of_its_own_keeps_its_port_and_its_data_over_a_kill(setting, cases):
    seen = []

    @cases("CT-90", needs=[Hook.RESTART])
    async def body(lab):
        async with lab.own_server({"PUBSUBD_ACK_BATCH_POLICY": "confirm"}) as own:
            seen.append(own.served)
            address, sub = own.endpoint.address, await own.subscription()
            await sub.publish()
            await own.restart()
            check(own.endpoint.address == address, "Another address.")
            (a,) = await sub.pull()
            await sub.ack(a)
            check(await own.stop() == 0, "Another exit code.")
            await own.start()
            check(await sub.pull_now() == [], "A message.")
        return "Kept."

    setting.start_command = StartCommand(START_COMMAND)
    assert await only(setting, cases) == (Outcome.PASS, "Kept.")
    (served,) = seen
    assert not served.data_dir.exists()
    assert served._process.poll() is not None


async def test_a_server_of_its_own_does_not_outlive_a_failed_case(setting, cases):
    seen = []

    @cases("CT-90", needs=[Hook.STOP])
    async def body(lab):
        async with lab.own_server() as own:
            seen.append(own.served)
            raise Failed("Seen.")

    setting.start_command = StartCommand(START_COMMAND)
    assert await only(setting, cases) == (Outcome.FAIL, "Seen.")
    assert seen[0]._process.poll() is not None and not seen[0].data_dir.exists()


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("sh -c 'echo no disk; exit 3' {port}", "ended with 3; it printed: no disk"),
        (
            "/no/such/program {port}",
            "'/no/such/program' of --start-cmd cannot be run: no such file or directory.",
        ),
    ],
)
async def test_a_start_command_that_starts_nothing_is_an_error(setting, cases, command, says):
    @cases("CT-90", needs=[Hook.STOP])
    async def body(lab):
        async with lab.own_server():
            return "Never said."

    setting.start_command = StartCommand(command)
    outcome, seen = await only(setting, cases)

    assert outcome is Outcome.ERROR and says in seen


async def test_a_server_that_lets_nobody_in_is_told_at_once(monkeypatch):
    asked = []

    async def answers(endpoint, project, within):
        asked.append(project)
        raise EndpointError(f"{endpoint.address} does not let us in: UNAUTHENTICATED")

    monkeypatch.setattr(Endpoint, "answers", answers)
    served = Served(StartCommand("sleep 60 {port}"), project="theirs")
    try:
        with pytest.raises(StartError, match=r"could not be used .* does not let us in"):
            await served.start()
    finally:
        served.remove()

    assert asked == ["theirs"]
