"""Every bound of the server in one place, each with the page or the API field that it comes from.

Qualifiers and units stand last, so that relatives line up. "quotas" is the documentation page
https://cloud.google.com/pubsub/quotas; a message and field name means its comment in the API definition;
"ours" is a bound that nothing prescribes and that only keeps memory or time finite.
"""

from __future__ import annotations

from typing import Final

SECOND_US: Final = 1_000_000
HOUR_US: Final = 3600 * SECOND_US
DAY_SECONDS: Final = 24 * 3600

# --- names and labels ------------------------------------------------------------------------------------

#: Last segment of a topic, subscription, snapshot or schema name (Topic.name and its relatives).
RESOURCE_ID_CHARS_MIN: Final = 3
RESOURCE_ID_CHARS_MAX: Final = 255

#: https://cloud.google.com/pubsub/docs/labels
LABEL_COUNT_MAX: Final = 64
LABEL_KEY_CHARS_MAX: Final = 63
LABEL_VALUE_CHARS_MAX: Final = 63

#: Ours: how much of a hostile name, token or value an error message repeats. A status message travels twice
#: in the trailers of Acknowledge, and a client with default settings gives up above 8 KiB of trailers.
ECHO_CHARS_MAX: Final = 400
#: Ours: the whole message, whatever went into it.
ERROR_MESSAGE_CHARS_MAX: Final = 2000

# --- topics ----------------------------------------------------------------------------------------------

#: Topic.message_retention_duration and, with the same bounds, Subscription.message_retention_duration.
RETENTION_SECONDS_MIN: Final = 600
RETENTION_SECONDS_MAX: Final = 31 * DAY_SECONDS

#: IngestionDataSourceSettings.CloudStorage.TextFormat.delimiter
TEXT_DELIMITER_CHARS: Final = 1

# --- subscriptions ---------------------------------------------------------------------------------------

#: Subscription.ack_deadline_seconds, StreamingPullRequest.stream_ack_deadline_seconds
ACK_DEADLINE_SECONDS_MIN: Final = 10
ACK_DEADLINE_SECONDS_MAX: Final = 600
ACK_DEADLINE_SECONDS_DEFAULT: Final = 10
#: https://cloud.google.com/pubsub/docs/exactly-once-delivery (default deadline when enabled at creation)
ACK_DEADLINE_SECONDS_DEFAULT_EXACTLY_ONCE: Final = 60

#: Subscription.message_retention_duration
SUBSCRIPTION_RETENTION_SECONDS_DEFAULT: Final = 7 * DAY_SECONDS

#: Subscription.expiration_policy; the maximum is on https://cloud.google.com/pubsub/docs/subscription-properties
EXPIRATION_TTL_SECONDS_MIN: Final = DAY_SECONDS
EXPIRATION_TTL_SECONDS_MAX: Final = 365 * DAY_SECONDS
EXPIRATION_TTL_SECONDS_DEFAULT: Final = 31 * DAY_SECONDS

#: https://cloud.google.com/pubsub/docs/subscription-message-filter
FILTER_BYTES_MAX: Final = 256

#: DeadLetterPolicy.max_delivery_attempts
MAX_DELIVERY_ATTEMPTS_MIN: Final = 5
MAX_DELIVERY_ATTEMPTS_MAX: Final = 100
MAX_DELIVERY_ATTEMPTS_DEFAULT: Final = 5

#: RetryPolicy.minimum_backoff, RetryPolicy.maximum_backoff
BACKOFF_SECONDS_MIN: Final = 0
BACKOFF_SECONDS_MAX: Final = 600
MINIMUM_BACKOFF_SECONDS_DEFAULT: Final = 10
MAXIMUM_BACKOFF_SECONDS_DEFAULT: Final = 600

#: CloudStorageConfig.max_duration, .max_bytes, .max_messages
EXPORT_DURATION_SECONDS_MIN: Final = 60
EXPORT_DURATION_SECONDS_MAX: Final = 600
EXPORT_DURATION_SECONDS_DEFAULT: Final = 300
EXPORT_BYTES_MIN: Final = 1000
EXPORT_BYTES_MAX: Final = 10 * 1024**3
EXPORT_MESSAGES_MIN: Final = 1000

#: https://cloud.google.com/pubsub/docs/smts/smts-overview and .../smts/udfs-overview
TRANSFORM_COUNT_MAX: Final = 5
UDF_CODE_BYTES_MAX: Final = 20 * 1024

# --- snapshots -------------------------------------------------------------------------------------------

#: Snapshot.expire_time: at most a week from the oldest message that it holds, and an hour at the least.
SNAPSHOT_LIFETIME_US_MAX: Final = 7 * 24 * HOUR_US
SNAPSHOT_LIFETIME_US_MIN: Final = HOUR_US

# --- schemas ---------------------------------------------------------------------------------------------

#: quotas, "schema definition size" and "revisions per schema"; a compiled schema may be as large as a text.
SCHEMA_DEFINITION_BYTES_MAX: Final = 307_200
SCHEMA_REVISIONS_MAX: Final = 20
#: Schema.revision_id
SCHEMA_REVISION_ID_CHARS: Final = 8
#: Ours: how deep the types of an Avro definition may lie in each other; Protocol Buffers has its own bounds.
SCHEMA_DEPTH_MAX: Final = 100
#: Ours: how long the compiler of Protocol Buffers may take; for any reasonable definition it is a moment.
SCHEMA_COMPILE_SECONDS_MAX: Final = 10.0
#: Ours: messages of a larger request are held against their schema in a thread. A megabyte of tiny values
#: takes a third of a second.
SCHEMA_CHECK_BYTES_MAX: Final = 256 * 1024
#: Ours: how many definitions are compiled at once, each by a process.
SCHEMA_COMPILERS_MAX: Final = 4

# --- policies --------------------------------------------------------------------------------------------

#: Policy.bindings (principals of all bindings together)
POLICY_MEMBERS_MAX: Final = 1500
#: Ours: Policy.etag, as long as those of the service.
ETAG_BYTES: Final = 8

# --- publish ---------------------------------------------------------------------------------------------

#: quotas, "publish request" and "messages"
PUBLISH_MESSAGE_COUNT_MIN: Final = 1
PUBLISH_MESSAGE_COUNT_MAX: Final = 1000
PUBLISH_REQUEST_BYTES_MAX: Final = 10_000_000
ATTRIBUTE_COUNT_MAX: Final = 100
ATTRIBUTE_KEY_BYTES_MAX: Final = 256
ATTRIBUTE_VALUE_BYTES_MAX: Final = 1024
ORDERING_KEY_BYTES_MAX: Final = 1024

# --- pull, ack, modack, streams --------------------------------------------------------------------------

#: quotas, "acknowledge request" and "modify ack deadline request"; applied to StreamingPullRequest as well.
ACK_REQUEST_BYTES_MAX: Final = 524_288
#: ModifyAckDeadlineRequest.ack_deadline_seconds, StreamingPullRequest.modify_deadline_seconds
MODIFY_ACK_DEADLINE_SECONDS_MIN: Final = 0
MODIFY_ACK_DEADLINE_SECONDS_MAX: Final = 600
#: Ours: client libraries fill acknowledge requests with up to 3000 ids, which have to fit the bound above.
ACK_ID_BYTES_MAX: Final = 160

# --- lists -----------------------------------------------------------------------------------------------

#: ListTopicsRequest.page_size and its relatives; the default is not documented.
PAGE_SIZE_MIN: Final = 0
PAGE_SIZE_MAX: Final = 1000
PAGE_SIZE_DEFAULT: Final = 1000

# --- the broker's queues and maps --------------------------------------------------------------------------

#: Ours: the newest messages of all topics that are held in memory for live subscribers.
TAIL_BYTES_MAX: Final = 32 * 1024**2
#: Ours: messages of one topic and commit are stored in rows of about this size.
CHUNK_BYTES_MAX: Final = 256 * 1024
#: Ours: what one read brings from storage to a subscription with a cold backlog, and what all of them bring
#: together, as far as a chunk for each allows.
READ_BYTES_MAX: Final = 2 * 1024**2
READ_BYTES_ALL_MAX: Final = 64 * 1024**2
#: Ours: what one commit delivers; subscriptions that it leaves out come first in the next.
PUMP_BYTES_MAX: Final = 16 * 1024**2
#: Ours: what a stream without limits of its own may hold; each outstanding message costs about half a
#: kilobyte.
OUTSTANDING_MESSAGES_MAX: Final = 100_000
#: Ours: messages waiting for redelivery that one read fetches.
READ_MESSAGES_MAX: Final = 500
#: Ours: below this many messages at hand the next read is asked for.
READ_AHEAD_MESSAGES_MIN: Final = 1500
#: Ours: one response carries about this much, as long as it holds more than one message. Raw gRPC clients
#: refuse responses above 4 MB by default.
RESPONSE_BYTES_MAX: Final = 1_000_000
#: https://cloud.google.com/pubsub/quotas (pull response)
PULL_MESSAGES_MAX: Final = 1000
#: Ours: how long the ending of a delivery is remembered. Official clients repeat an ack for up to ten
#: minutes.
ENDING_KEPT_US: Final = HOUR_US + HOUR_US // 4
#: Ours: endings remembered for one subscription; only nacks and acks of later generations are kept one by
#: one.
ENDINGS_MAX: Final = 4_000_000
#: Ours: named clients that the journal's records refer to; beyond it the oldest are named anew.
CLIENTS_MAX: Final = 10_000
#: A delivery confirmed within this time shows a client that confirms receipt.
RECEIPT_US: Final = 2 * SECOND_US
#: Ours: a response whose commit took longer is not sent; its leases lapse.
DELIVERY_DELAY_US_MAX: Final = SECOND_US
#: Ours: how long finished messages may stay in storage that nobody needs.
TRIM_AFTER_US: Final = 30 * SECOND_US
#: Ours: messages finished on a subscription before it looks for rows that nobody needs at once.
TRIM_MESSAGES_MIN: Final = 2000
#: Ours: the operation log is folded into a checkpoint when it has grown by this much, or by the size of the
#: last checkpoint four times over, if that is more.
OPLOG_BYTES_MAX: Final = 8 * 1024**2
#: Ours: the unsealed end of the journal, while nothing seals it.
JOURNAL_TAIL_BYTES_MAX: Final = 256 * 1024**2
#: Ours: how long a call waits for its commit. Client libraries give these calls 60 s, and take an answer that
#: never came for a success; ten seconds leave room for the reply.
SETTLE_SECONDS_MAX: Final = 9.0
#: Ours: within this a half-closed stream ends; clients at shutdown wait for it.
HALF_CLOSE_SECONDS_MAX: Final = 0.8
#: Ours: at shutdown, how long streams are given to hear that they end.
CLOSE_STREAMS_SECONDS_MAX: Final = 3.0
#: Ours: requests with acks of one stream whose confirmations are not sent yet; beyond it no more are read.
STREAM_REQUESTS_UNCONFIRMED_MAX: Final = 64
#: Ours: how long an empty Pull is held. Callers and proxies give up at 30 s or 60 s.
PULL_WAIT_SECONDS_MAX: Final = 25.0
#: Ours: a Pull ends this long before the caller's own deadline, if that is known and not very near.
PULL_MARGIN_SECONDS: Final = 1.0
#: Ours: a Pull with return_immediately waits this long for a message that must be read from storage first.
PULL_IMMEDIATE_SECONDS: Final = 0.5
#: Transport limit of a received message. Above the 10 MB of a publish request, so that our own answer names
#: it.
RECEIVE_BYTES_MAX: Final = 24 * 1024**2
#: Ours: a response that waited behind a client which did not read is sent if its leases have this much left.
LEASE_LEFT_US_MIN: Final = 5 * SECOND_US
#: Ours: at shutdown, how long calls that wait for the last commit have to send their answers.
ANSWER_SECONDS_MAX: Final = 0.5
#: Ours: published bytes that wait for a commit; beyond it Publish is told to come again.
UNCOMMITTED_BYTES_MAX: Final = 64 * 1024**2
#: Ours: subscriptions without consumers that keep their messages at hand for the next one.
RESTING_SUBSCRIPTIONS_MAX: Final = 16
#: Ours: how much of a client's name the journal keeps.
CLIENT_CHARS_MAX: Final = 256
#: Ours: messages of one subscription that the cursor has passed because their ordering key is held, eight
#: bytes or so each; beyond it the subscription reads no further until some are delivered.
PARKED_MESSAGES_MAX: Final = 500_000
#: Ours: after so many in one step other work comes first.
PARKED_AT_ONCE_MAX: Final = 20_000
#: Ours: bytes of such messages that stay in memory; the others are read again.
PARKED_BYTES_MAX: Final = 8 * 1024**2
#: Ours: how close together a subscription or a topic looks for messages past their retention.
RETENTION_STEP_US: Final = 10 * SECOND_US
#: Ours: how exactly the last use of a subscription is remembered across a restart.
ACTIVITY_STEP_US: Final = HOUR_US
#: Ours: seeks that moved the cursor back, each to a later point than the one before, that ack ids are told
#: apart by.
EPOCHS_MAX: Final = 256

# --- the port --------------------------------------------------------------------------------------------

#: Ours: how long a connection may say nothing before it is closed; gRPC and HTTP clients speak at once.
FIRST_BYTES_SECONDS_MAX: Final = 60.0
#: Ours: descriptors that the server asks for, if its surroundings allow as many.
DESCRIPTORS_MAX: Final = 65_536
#: Ours: how long no connections are accepted when there is no room for one more.
ACCEPT_PAUSE_SECONDS: Final = 1.0
#: Ours: a request of REST; the 10 MB of a publish request take 13.4 MB in base64.
HTTP_BODY_BYTES_MAX: Final = 32 * 1024**2
#: Ours: how long the body of a request may take to arrive.
HTTP_BODY_SECONDS_MAX: Final = 60.0
#: Ours: how long a connection is kept for another request.
HTTP_KEEP_ALIVE_SECONDS: Final = 75.0
#: Ours: how long the rest of a body that was refused is read, so that its sender hears why.
HTTP_LINGER_SECONDS: Final = 5.0
#: Ours: query parameters of one request.
HTTP_PARAMETERS_MAX: Final = 100

# --- push ------------------------------------------------------------------------------------------------

#: https://cloud.google.com/pubsub/docs/push: slow start from "small single digits", exponential growth up to
#: 3000 outstanding messages and linear growth above, pauses of 100 ms to 60 s.
PUSH_WINDOW_START: Final = 3
PUSH_WINDOW_LINEAR_FROM: Final = 3000
PUSH_BACKOFF_US_MIN: Final = SECOND_US // 10
PUSH_BACKOFF_US_MAX: Final = 60 * SECOND_US
#: Ours: bytes of messages outstanding at one endpoint, but for a single larger message.
PUSH_BYTES_MAX: Final = 8 * 1024**2
#: Ours: requests under way to all endpoints, each of which takes a file, and the bytes of their messages;
#: what was granted beyond that waits its turn.
PUSHES_ALL_MAX: Final = 4000
PUSH_BYTES_ALL_MAX: Final = 128 * 1024**2
#: Ours: an endpoint that is paused for longer keeps no messages at hand.
PUSH_REST_US_MIN: Final = SECOND_US
#: Ours: of a response only the status counts. So much of a body is read, so that the connection can be used
#: again; beyond it the connection is closed.
PUSH_RESPONSE_BYTES_MAX: Final = 64 * 1024
PUSH_RESPONSE_SECONDS_MAX: Final = 5.0
#: Ours: how long a connection without requests is kept.
PUSH_KEEP_ALIVE_SECONDS: Final = 60.0
#: Ours: at shutdown, how long requests under way have to be answered.
CLOSE_PUSHES_SECONDS_MAX: Final = 2.0
#: https://cloud.google.com/pubsub/docs/authenticate-push-subscriptions: how long a token is valid. Ours: it
#: is used again until so little of that is left, and so many are kept.
PUSH_TOKEN_SECONDS: Final = 3600
PUSH_TOKEN_LEFT_SECONDS_MIN: Final = 300
PUSH_TOKENS_MAX: Final = 1000
