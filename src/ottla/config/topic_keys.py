"""The keys of a topic: all that Apache Kafka 4.3 has, with its types, ranges and defaults.

A topic without a value of its own takes that of the broker keys behind the arrow: the first of them that has
one. Every topic key can change while the broker runs. `rows` explains the notation.
"""

# ruff: noqa: E501
TABLE = """
# Retention and compaction
cleanup.policy                  LIST    delete      [compact,delete]
    <- log.cleanup.policy
    What happens to old segments: delete them by age and size, compact them to the last record of each key,
    both, or neither (an empty value).
retention.ms                    LONG    604800000   >=-1
    <- log.retention.ms, log.retention.minutes * 60000, log.retention.hours * 3600000
    Delete segments whose newest record is older than this; -1 to keep them for ever.
retention.bytes                 LONG    -1          -
    <- log.retention.bytes
    Delete the oldest segments of a partition beyond this size; -1 for no limit.
delete.retention.ms             LONG    86400000    >=0
    <- log.cleaner.delete.retention.ms
    How long compaction keeps the marker of a deleted key, so that slow consumers see it.
min.compaction.lag.ms           LONG    0           >=0
    <- log.cleaner.min.compaction.lag.ms
    The shortest time a record stays uncompacted in a compacted topic.
max.compaction.lag.ms           LONG    9223372036854775807  >=1
    <- log.cleaner.max.compaction.lag.ms
    The longest time a record may stay uncompacted in a compacted topic.
min.cleanable.dirty.ratio       DOUBLE  0.5         0..1
    <- log.cleaner.min.cleanable.ratio
    Share of a compacted log that must be uncompacted before compaction looks at it.
file.delete.delay.ms            LONG    60000       >=0
    <- log.segment.delete.delay.ms
    How long a deleted segment stays on disk, for readers that are still busy with it.

# Segments and indexes
segment.bytes                   INT     1073741824  >=1048576
    <- log.segment.bytes
    Size at which a partition's log starts its next segment file.
segment.ms                      LONG    604800000   >=1
    <- log.roll.ms, log.roll.hours * 3600000
    Age at which a partition's log starts its next segment file, full or not. Where it is above ten seconds, the times
    of records alone do so only when the file is ten seconds old or has 1 MiB.
segment.jitter.ms               LONG    0           >=0
    <- log.roll.jitter.ms, log.roll.jitter.hours * 3600000
    Random time taken off segment.ms, so that not all partitions start a segment at once.
segment.index.bytes             INT     10485760    >=4
    <- log.index.size.max.bytes
    Largest size of a segment's index; a full index starts the next segment.
index.interval.bytes            INT     4096        >=0
    <- log.index.interval.bytes
    Bytes of log between two entries of the offset index: fewer find records faster, more save space. More than 65536 count as 65536, so that no search takes long (Kafka follows any number).
preallocate                     BOOLEAN false       -            unused
    <- log.preallocate
    Reserve a new segment's whole size on disk. Without effect: space is reserved as a segment grows.
internal.segment.bytes          INT     null        >=1          internal
    Segment size below what segment.bytes allows, for tests; it counts instead of segment.bytes.

# Durability
flush.messages                  LONG    9223372036854775807  >=1
    <- log.flush.interval.messages
    Force data to disk (fsync) after so many records; 1 means before each acknowledgement.
flush.ms                        LONG    9223372036854775807  >=0
    <- log.flush.interval.ms, log.flush.scheduler.interval.ms
    Force data to disk (fsync) when the oldest record not yet on disk is so old.
min.insync.replicas             INT     1           >=1
    <- min.insync.replicas
    Replicas that must have a record before acks=all is answered; with fewer in sync, such writes fail.
unclean.leader.election.enable  BOOLEAN false       -
    <- unclean.leader.election.enable
    Let a replica lead that is not in sync when no other is alive; this loses acknowledged records.

# Records
max.message.bytes               INT     1048588     >=0
    <- message.max.bytes
    Largest record batch, as it comes compressed from the producer.
max.decompressed.message.bytes  INT     134217728   >=1          internal
    <- max.decompressed.message.bytes
    Largest size to which the broker decompresses the records of one batch.
max.records.per.batch           INT     1000000     >=1          internal
    <- max.records.per.batch
    Most records in one batch, and most headers of the records of a batch that the broker opens.
producer.id.max.per.partition   INT     10000       >=1          internal
    <- producer.id.max.per.partition
    Idempotent producers that a partition remembers.
message.timestamp.type          STRING  CreateTime  CreateTime|LogAppendTime
    <- log.message.timestamp.type
    Whose time a record carries: the producer's (CreateTime) or the broker's (LogAppendTime).
message.timestamp.before.max.ms LONG    9223372036854775807  >=0
    <- log.message.timestamp.before.max.ms
    How far a record's own timestamp may lie in the past. Only with CreateTime.
message.timestamp.after.max.ms  LONG    3600000     >=0
    <- log.message.timestamp.after.max.ms
    How far a record's own timestamp may lie in the future. Only with CreateTime.
compression.type                STRING  producer    uncompressed|zstd|lz4|snappy|gzip|producer
    <- compression.type
    The compression of stored batches. With `producer` the broker keeps what the producer chose, without opening
    batches; with another value it compresses anew what differs.
compression.gzip.level          INT     -1          @gzip-level
    <- compression.gzip.level
    How hard gzip works when compression.type is gzip; -1 is gzip's own default.
compression.lz4.level           INT     9           1..17
    <- compression.lz4.level
    How hard lz4 works when compression.type is lz4; 9 is its fast mode.
compression.zstd.level          INT     3           -131072..22
    <- compression.zstd.level
    How hard zstd works when compression.type is zstd.

# Replication throttling
leader.replication.throttled.replicas    LIST  ''  @replicas  unused
    Replicas that are sent data slowly. Without effect: replication is not throttled.
follower.replication.throttled.replicas  LIST  ''  @replicas  unused
    Replicas that fetch data slowly. Without effect: replication is not throttled.

# Tiered storage, which Ottla does not have
remote.storage.enable           BOOLEAN false       @false       unused
    Keep old segments in remote storage. Can only be false.
remote.log.copy.disable         BOOLEAN false       -            unused
    Stop copying segments to remote storage. Without effect.
remote.log.delete.on.disable    BOOLEAN false       -            unused
    Delete remote segments when remote storage is turned off. Without effect.
local.retention.ms              LONG    -2          >=-2         unused
    <- log.local.retention.ms
    How long segments stay on local disk. Without effect: see retention.ms.
local.retention.bytes           LONG    -2          >=-2         unused
    <- log.local.retention.bytes
    How much stays on local disk. Without effect: see retention.bytes.
"""
