"""The audit once more, as one would write it by hand for DuckDB: what the package is compared with in speed.

It reads the same files, and finds the same in the synthetic journals; it is not held to every rule, and takes
the settings of a subscription from its creation.
"""

from __future__ import annotations

from pathlib import Path

import duckdb

_NEVER = 2**62
LEASED, EXPIRED, NACKED, RESET, ACKED, GONE, PURGED, RESTORED = range(1, 9)

_RESOURCES = f"""
create table configs as
    select seq, ts_us, sub_id, topic_id, detail::json as detail from events where kind = 10 and sub_id <> 0;
create table subs as
    select sub_id, any_value(topic_id) as topic_id, min(seq) as start_seq, min(ts_us) as start_us,
        coalesce(
            min(seq) filter ((detail ->> 'change') in ('deleted', 'expired', 'detached')), {_NEVER})
            as end_seq,
        any_value(detail -> 'subscription' ->> 'name') as name,
        coalesce(bool_or((detail -> 'subscription' ->> 'enable_exactly_once_delivery')::bool), false) as once,
        coalesce(bool_or((detail -> 'subscription' ->> 'enable_message_ordering')::bool), false) as ordered
    from configs where (detail -> 'subscription') is not null group by sub_id;
create table seeks as
    select sub_id, seq, ts_us, aux as target_us,
        row_number() over (partition by sub_id order by seq) as epoch,
        (detail::json ->> 'snapshot') is not null as is_snapshot,
        if((detail::json ->> 'retain_acked')::bool, (detail::json ->> 'kept_from_us')::bigint, {_NEVER})
            as kept_us,
        coalesce((detail::json ->> 'kept_after_id')::bigint, 0) as kept_id
    from events where kind = 9;
create table drops as
    select sub_id, seq, ts_us, aux as cutoff_us from events where kind = 8 and message_id = 0;
create table last_epochs as
    select subs.*, coalesce(epoch, 0) as epoch, coalesce(seq, start_seq) as begin_seq, target_us, kept_us,
        kept_id,
        coalesce(is_snapshot, false) as is_snapshot
    from subs left join (
        from seeks select distinct on (sub_id) * order by sub_id, seq desc) using (sub_id);
"""

# The events of messages on subscriptions, and as kinds above 100 the seeks and drops that befall them.
_OWN = """
create table own as
    select seq, ts_us, kind, sub_id, message_id, generation, attempt, deadline_us, ref_ts_us, result, okey,
        0 as epoch
    from events
    where kind in (2, 3, 4, 5, 6, 7, 8, 11, 15) and message_id <> 0
        and (kind not in (3, 4, 5) or generation <> 0)
        and sub_id not in (select sub_id from seeks);
insert into own
    select e.seq, e.ts_us, kind, e.sub_id, message_id, generation, attempt, deadline_us, ref_ts_us, result,
        okey,
        coalesce(seeks.epoch, 0)
    from events e asof left join seeks on e.sub_id = seeks.sub_id and e.seq > seeks.seq
    where kind in (2, 3, 4, 5, 6, 7, 8, 11, 15) and message_id <> 0
        and (kind not in (3, 4, 5) or generation <> 0)
        and e.sub_id in (select sub_id from seeks);
create table befallen as
    with lives as (
        select sub_id, message_id, max(seq) as last_seq, min(seq) as first_seq,
            min(ref_ts_us) filter (kind in (2, 7, 8, 11)) as pub_us
        from own
        where sub_id in (select sub_id from seeks) or sub_id in (select sub_id from drops)
        group by all
    )
    select s.seq, s.ts_us, s.epoch,
        case when is_snapshot then 103 when pub_us < target_us then 101 else 102 end as kind,
        sub_id, message_id
    from lives join seeks s using (sub_id)
    where s.seq < last_seq and (pub_us < s.ts_us or first_seq < s.seq)
        and (is_snapshot or pub_us < target_us or (pub_us >= kept_us and message_id > kept_id))
    union all
    select d.seq, d.ts_us, 0, 104, sub_id, message_id
    from lives join drops d using (sub_id) where d.seq < last_seq and pub_us < cutoff_us;
insert into own
    select seq, ts_us, kind, sub_id, message_id, 0, 0, 0, 0, 0, 0, epoch from befallen;
"""

_REPLAY = f"""
create table replayed as
    with looked_back as (
        select *,
            last_value(if(kind = 2, generation, null) ignore nulls) over earlier as newest,
            last_value(if(kind = 2 or (kind = 3 and result = 0), deadline_us, null) ignore nulls) over earlier
                as lease_end_us,
            max(if(kind = 2, seq, null)) over earlier as delivered_seq,
            max(case
                when kind = 2 then seq * 16 + {LEASED} when kind = 6 then seq * 16 + {EXPIRED}
                when kind = 4 and result = 0 then seq * 16 + {NACKED} when kind = 15 then seq * 16 + {RESET}
                when kind = 5 and result = 0 then seq * 16 + {ACKED} when kind = 7 then seq * 16 + {GONE}
                when kind = 8 then seq * 16 + {PURGED} end) over earlier as was_set,
            last_value(if(kind = 5 and result = 0, generation, null) ignore nulls) over earlier
                as acked_generation,
            coalesce(max(if(kind = 5 and result = 0, seq, null)) over earlier, 0) as acked_seq,
            coalesce(max(if(kind = 101, seq, null)) over earlier, 0) as purged_seq,
            coalesce(max(if(kind in (102, 103), seq, null)) over earlier, 0) as undone_seq,
            coalesce(max(if(kind = 103, seq, null)) over earlier, 0) as snapshot_seq,
            coalesce(max(if(kind = 104, seq, null)) over earlier, 0) as dropped_seq
        from own
        window earlier as (
            partition by message_id, sub_id order by seq rows between unbounded preceding and 1 preceding)
    ), stated as (
        select *, coalesce(was_set // 16, 0) as set_seq, coalesce(was_set % 16, 0) as set_state,
            greatest(purged_seq, undone_seq, dropped_seq) as last_seq
        from looked_back
    )
    select stated.* exclude (was_set), once,
        case
            when last_seq <= set_seq then set_state
            when last_seq = purged_seq then
                if(set_state = {ACKED} and undone_seq <= set_seq, {ACKED}, {PURGED})
            when last_seq = undone_seq then
                if(set_state in ({ACKED}, {GONE}, {PURGED}) or greatest(purged_seq, dropped_seq) > set_seq,
                    {RESTORED}, set_state)
            else if(set_state in ({LEASED}, {ACKED}, {GONE}, {PURGED}), set_state, {PURGED})
        end as state
    from stated join subs using (sub_id);
create table judged as
    select *,
        case
            when kind = 2 and acked_seq > undone_seq then 'G1_delivered_after_ack'
            when kind = 2 and purged_seq > undone_seq then 'G1_delivered_after_seek'
            when kind = 2 and (state = {LEASED} or (state = {RESET} and once)) and ts_us < lease_end_us
                then 'G2_early_redelivery'
            when kind = 6 and state in ({LEASED}, {RESET}) and ts_us < lease_end_us then 'G2_early_expire'
            when kind not in (3, 4, 5) or snapshot_seq > coalesce(delivered_seq, 0) then null
            when result = 2 and state = {LEASED} and generation = newest and ts_us < lease_end_us
                then 'G3_valid_rejected'
            when result <> 0 or (state = {LEASED} and generation = newest) or (kind = 5 and not once)
                or (kind = 4 and state = {RESET} and generation = newest)
                or (kind = 5 and state = {PURGED} and generation = newest) then null
            when kind = 5 and state = {ACKED} and generation = acked_generation then 'G3_repeat_accepted'
            else 'G3_invalid_accepted'
        end as code
    from replayed where kind < 100;
"""

_FACTS = f"""
create table facts as
    select sub_id, message_id, epoch, min(ref_ts_us) filter (kind in (2, 7, 8, 11)) as pub_us,
        max(okey) as okey_max,
        if(max(okey) <> 0, max(okey), min(okey)) as okey,
        min(seq) filter (kind = 2 and (generation = 1 or (state <> {RESET}))) as first_seq,
        min(ts_us) filter (kind = 2 and (generation = 1 or (state <> {RESET}))) as first_us,
        max(ts_us) filter (kind = 2) as last_us, count(*) filter (kind = 2) as deliveries,
        max(attempt) as attempts,
        count(*) filter (kind = 3 and result = 0) as extends,
        count(*) filter (kind = 4 and result = 0) as nacks,
        count(*) filter (kind = 6) as expires, count(*) filter (kind = 15) as resets,
        count(*) filter (kind = 5 and result > 1) as ack_fails,
        count(*) filter (kind = 5 and result = 0) as acks,
        min(ts_us) filter (kind = 5 and result = 0) as ack_us,
        min(ts_us) filter (kind in (7, 8, 11)) as gone_us,
        arg_min(state, seq) not in ({ACKED}, {GONE}, {PURGED}) and not bool_or(kind = 11) as owed,
        max(seq) as last_seq,
        arg_max(case when kind = 2 then {LEASED} when kind = 3 then {LEASED} else 0 end, seq)
            as last_state,
        list(code order by seq) filter (code is not null) as v_code,
        list(seq order by seq) filter (code is not null) as v_seq
    from judged group by sub_id, message_id, epoch;
update facts set gone_us = (
        select min(d.ts_us) from drops d
        where d.sub_id = facts.sub_id and d.seq > facts.last_seq and facts.pub_us < d.cutoff_us)
    where ack_us is null and gone_us is null and last_state <> {LEASED}
        and sub_id in (select sub_id from drops);
copy (select * exclude (okey_max, last_state) from facts) to '{{out}}/facts.parquet';
"""

_UNTOUCHED = """
create table published as select seq, ts_us, topic_id, message_id, okey from events where kind = 1;
create table untouched as
    select l.sub_id, p.message_id, p.okey, p.ts_us, p.seq, l.epoch, l.ordered, l.is_snapshot,
        p.seq < l.begin_seq as is_old
    from published p join last_epochs l using (topic_id)
    where p.seq > l.start_seq and p.seq < l.end_seq
        and (l.epoch = 0 or p.seq > l.begin_seq or p.ts_us >= l.target_us)
        and not exists (
            from facts f where f.message_id = p.message_id and f.sub_id = l.sub_id and f.epoch = l.epoch);
delete from untouched u where is_old and exists (
    from last_epochs l where l.sub_id = u.sub_id and (u.ts_us < l.kept_us or u.message_id <= l.kept_id))
    and (exists (
        from facts f where f.sub_id = u.sub_id and f.message_id = u.message_id
            and (f.ack_us is not null or f.gone_us is not null))
    or exists (from seeks s where s.sub_id = u.sub_id and s.epoch < u.epoch and s.seq > u.seq
        and u.ts_us < s.target_us));
delete from untouched u where is_old and exists (
    from own f where f.kind = 11 and f.sub_id = u.sub_id and f.message_id = u.message_id);
delete from untouched u where exists (
    from drops d where d.sub_id = u.sub_id and d.seq > u.seq and u.ts_us < d.cutoff_us);
"""

_FOUND = f"""
create table found as
    select unnest(v_code) as code, sub_id, message_id, epoch, unnest(v_seq) as seq
    from facts where v_code is not null;
create table open as
    select sub_id, message_id from facts f join last_epochs l using (sub_id, epoch)
    where owed and ack_us is null and gone_us is null and end_seq = {_NEVER} and not is_snapshot
    union
    select u.sub_id, message_id from untouched u join last_epochs l using (sub_id)
    where end_seq = {_NEVER} and not l.is_snapshot;
insert into found
    select if(b.sub_id is null, 'G4_lost', 'G4_ghost'), sub_id, message_id, 0, 0
    from open o full outer join (
        from backlog where sub_id in (select sub_id from last_epochs where not is_snapshot)) b
        using (sub_id, message_id)
    where o.sub_id is null or b.sub_id is null;
create table of_keys as
    select sub_id, epoch, okey, message_id, first_seq, first_us, least(ack_us, gone_us) as closed_us,
        deliveries
    from facts join subs using (sub_id) where ordered and okey <> 0 and (owed or deliveries > 0)
    union all
    select sub_id, epoch, okey, message_id, null, null, null, 0 from untouched where ordered and okey <> 0;
insert into found
    with running as (
        select *, max(first_seq) over earlier as latest,
            max(if(first_seq is null, coalesce(closed_us, {_NEVER}), null)) over earlier as until_us
        from of_keys
        window earlier as (partition by sub_id, epoch, okey order by message_id
            rows between unbounded preceding and 1 preceding)
    )
    select 'G5_out_of_order', sub_id, message_id, epoch, first_seq from running where latest > first_seq
    union all
    select 'G5_skipped', sub_id, message_id, epoch, first_seq from running where until_us > first_us;
insert into found
    with again as (
        select sub_id, epoch, okey from of_keys group by all
        having sum(deliveries) > count(*) filter (deliveries > 0)
    ), followed as (
        select sub_id, epoch, okey, message_id as low, generation, lead(message_id) over nearby as high,
            lead(seq) over nearby as next_seq, lead(ts_us) over nearby as next_us
        from own semi join again using (sub_id, epoch, okey) where kind = 2
        window nearby as (partition by sub_id, epoch, okey order by seq)
    )
    select distinct 'G5_redelivery_gap', sub_id, high, epoch, next_seq
    from followed f join of_keys k using (sub_id, epoch, okey)
    where generation > 1 and k.message_id > low and k.message_id < high
        and (closed_us is null or closed_us > next_us);
"""

_REFERENCES = """
create table sample as
    select seq, ts_us, kind, sub_id, message_id, generation, ref_ts_us from events
    where message_id <> 0 and (hash(message_id) % 1000 = 0 or message_id in (select message_id from found));
insert into found
    select 'G0_reference', s.sub_id, s.message_id, 0, s.seq
    from sample s join (from sample where kind = 1) p using (message_id)
    where s.kind in (2, 7, 8, 11) and s.ref_ts_us <> p.ts_us
    union all
    select 'G0_reference', s.sub_id, s.message_id, 0, s.seq
    from sample s join (
        select sub_id, message_id, generation, list(ts_us) as right_us
        from sample where kind = 2 group by all) d
        using (sub_id, message_id, generation)
    where s.kind in (3, 4, 5, 6, 15) and not list_contains(right_us, s.ref_ts_us);
"""

_TABLES = """
copy (select f.*, name, if(once or code[:2] in ('G0', 'G4', 'G5'), 'violation', 'info') as severity
    from found f join subs using (sub_id)) to '{out}/violations.parquet';
copy (select e.* from events e semi join (select distinct message_id from found) using (message_id))
    to '{out}/evidence.parquet';
copy (
    with counted as (
        select sub_id, count(*) filter (kind = 7) as dead_lettered, count(*) filter (kind = 11) as filtered
        from own group by sub_id
    ), of_facts as (
        select sub_id, count(distinct message_id) filter (owed) as messages, sum(deliveries) as deliveries,
            sum(acks) as acks_ok, count(*) filter (owed and gone_us is not null) as gone
        from facts group by sub_id
    ), of_open as (select sub_id, count(*) as open from open group by sub_id),
    of_codes as (pivot (select sub_id, code from found) on code using count(*) group by sub_id)
    select * from subs left join of_facts using (sub_id) left join counted using (sub_id)
        left join of_open using (sub_id) left join of_codes using (sub_id)
) to '{out}/audit_summary.parquet';
"""


class Audit:
    """One journal in one database in memory; tables go to `out`."""

    def __init__(self, journal: Path, out: Path, threads: int = 2) -> None:
        self._database, self._out = duckdb.connect(), out
        self._database.execute(f"set threads = {threads}; set preserve_insertion_order = false")
        self._database.execute(f"set temp_directory = '{out}/spill'")
        (backlog,) = (journal / "backlog").glob("*.parquet")
        self._database.execute(
            "create view events as "
            f"from read_parquet('{journal}/segments/*/*/*.parquet', hive_partitioning = false);"
            f"create view backlog as from read_parquet('{backlog}')"
        )

    def facts(self) -> None:
        """The facts, with what breaks G1 to G3."""
        for step in (_RESOURCES, _OWN, _REPLAY, _FACTS.replace("{out}", str(self._out))):
            self._database.execute(step)

    def audit(self) -> None:
        """G4, G5, G0, and the tables; after `facts`."""
        for step in (_UNTOUCHED, _FOUND, _REFERENCES, _TABLES.replace("{out}", str(self._out))):
            self._database.execute(step)

    def found(self) -> list[tuple[str, int, int, int]]:
        """(code, sub_id, message_id, seq) of every violation; seq 0: it is not an event."""
        return self._database.execute("select code, sub_id, message_id, seq from found").fetchall()
