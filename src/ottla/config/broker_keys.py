"""The keys of a broker that Ottla acts on, or will once the package they belong to is built (`unused` until then).

Names, types and ranges are those of Apache Kafka 4.3, and so are the defaults but for these: `node.id` is 1,
`log.dir` is a folder of the user's own, limits that Kafka leaves open are finite, and socket buffers and the listen
backlog are left to the operating system. `rows` explains the notation.
"""

# ruff: noqa: E501
TABLE = """
# Identity and address
node.id                               INT     1       >=0   high
    The number of this broker in its cluster.
broker.id                             INT     -1      -     high
    The older name of node.id.
broker.rack                           STRING  null    -
    The rack or zone of this broker; replicas of a partition are spread over racks.
listeners                             LIST    PLAINTEXT://:9092  -  per-broker high
    Addresses to listen on, as NAME://host:port or host:port; no host means every interface. Clients get the addresses of the listener they came in by.
advertised.listeners                  LIST    null    -     high
    Addresses that clients and brokers are told to use, by listener name, where they differ from listeners.
inter.broker.listener.name            STRING  null    -
    The name of the listener for other brokers, which clients are never told. Not set, it is INTERNAL; where listeners does not name that one, it is on 127.0.0.1 with any free port.
listener.security.protocol.map        STRING  SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT  -  per-broker low
    The security protocol of each listener name.
ottla.registry                        STRING  null    -     high
    Where the cluster keeps its state: sqlite:PATH for brokers on one machine, zookeeper://HOST:PORT,HOST:PORT/PATH for brokers on many. Brokers of one cluster name the same. Not set, it is registry.sqlite in the data folder. Ottla's own key.
log.dir                               LIST    ~/.local/share/ottla/data  -  high
    The data folder, if log.dirs is not set.
log.dirs                              LIST    null    -     high
    The data folder. Ottla keeps all data in one folder, so only one can be named.

# Limits
socket.request.max.bytes              INT     104857600    >=1   high
    Largest request a client may send; a larger one closes the connection.
message.max.bytes                     INT     1048588      >=0   cluster-wide high
    Largest record batch, as it comes compressed from the producer. Topics: max.message.bytes.
max.decompressed.message.bytes        INT     134217728    >=1   cluster-wide
    Largest size to which the broker decompresses the records of one batch. Ottla's own key.
max.records.per.batch                 INT     1000000      >=1   cluster-wide
    Most records in one batch, and most headers of the records of a batch that the broker opens. Ottla's own key.
max.connections                       INT     10000        >=1   cluster-wide
    Most connections at one time; more are closed at once.
max.connections.per.ip                INT     8000         >=0   cluster-wide
    Most connections at one time from one address. 0 only beside overrides that admit some address; a change at run time may not lock out the client that requests it.
max.connections.per.ip.overrides      STRING  ''           -     cluster-wide
    Other limits for some addresses: address:limit,address:limit.
max.connection.creation.rate          INT     2147483647   >=0   cluster-wide unused
    Most new connections in a second. Not enforced yet.
connections.max.idle.ms               LONG    600000       -
    Close a connection that has been silent so long; a negative value never does.
queued.max.request.bytes              LONG    268435456    @not-zero
    Memory for requests that are being read or answered; beyond it no more is read until some is done. An eighth of it (at least 4 MB) besides for batches that wait to be opened; beyond it producers are told to try again. As much again for answers that clients do not take; beyond it the slowest are cut off. -1 for no limit.
client.memory.max.bytes               LONG    -1           >=-1  cluster-wide
    Memory for what clients make the broker keep: unfinished frames, fetch sessions, members of groups. When it is full, what has been idle for longest is dropped; what then does not fit is refused until memory is free. -1 for as much as queued.max.request.bytes. Ottla's own key.
client.memory.max.bytes.per.ip        LONG    -1           >=-1  cluster-wide
    The share of one client address in client.memory.max.bytes. It counts only when all of it is used: then what addresses above their share hold is dropped first. -1 for a half. Ottla's own key.
max.partitions                        INT     20000        >=1   cluster-wide
    Most partitions in the cluster. Those of __consumer_offsets and __transaction_state (as many as are configured for them) do not count, so that groups and transactions can always begin. Ottla's own key.
max.configured.groups                 INT     10000        >=0   cluster-wide
    Most groups with configurations of their own; they need not exist. Names of more than 250 characters count several times. What is configured already can always be changed and removed. Ottla's own key.
max.request.partition.size.limit      INT     2000         >=1
    Most partitions in one page of a DescribeTopicPartitions response.
fetch.max.bytes                       INT     57671680     >=1024
    Most data in one fetch response, whatever the client asks for.
max.incremental.fetch.session.cache.slots  INT  1000       >=0
    Fetch sessions kept for clients that fetch incrementally.

# Sockets
socket.listen.backlog.size            INT     65535        >=1
    Connections the operating system holds while they wait to be accepted. The system lowers it to its own limit (net.core.somaxconn on Linux).
socket.receive.buffer.bytes           INT     -1           -     high
    Receive buffer (SO_RCVBUF) of client connections; -1 leaves it to the operating system, which lets it grow with need.
socket.send.buffer.bytes              INT     -1           -     high
    Send buffer (SO_SNDBUF) of client connections; -1 leaves it to the operating system, which lets it grow with need.

# Topics
auto.create.topics.enable             BOOLEAN true         -     high
    Create a topic when a client asks for one that does not exist and allows it.
auto.create.topics.per.minute         INT     1000         >=1   cluster-wide
    Topics that one client address may have created in this way: so many at once, and so many in a minute. Beyond it Metadata answers THROTTLING_QUOTA_EXCEEDED for a topic; CreateTopics is not limited. Ottla's own key.
num.partitions                        INT     1            >=1
    Partitions of a new topic that does not say.
default.replication.factor            INT     1            >=1
    Replicas of a new topic that does not say.
delete.topic.enable                   BOOLEAN true         -     high
    Allow topics to be deleted.
min.insync.replicas                   INT     1            >=1   cluster-wide high
    Replicas that must have a record before acks=all is answered.
unclean.leader.election.enable        BOOLEAN false        -     cluster-wide high
    Let a replica lead that is not in sync when no other is alive; this loses acknowledged records.

# Records
compression.type                      STRING  producer     uncompressed|zstd|lz4|snappy|gzip|producer  cluster-wide high
    The compression of stored batches; `producer` keeps what the producer chose.
compression.gzip.level                INT     -1           @gzip-level  cluster-wide
    How hard gzip works when compression.type is gzip.
compression.lz4.level                 INT     9            1..17        cluster-wide
    How hard lz4 works when compression.type is lz4; 9 is its fast mode.
compression.zstd.level                INT     3            -131072..22  cluster-wide
    How hard zstd works when compression.type is zstd.
log.message.timestamp.type            STRING  CreateTime   CreateTime|LogAppendTime  cluster-wide
    Whose time a record carries: the producer's or the broker's.
log.message.timestamp.before.max.ms   LONG    9223372036854775807  >=0  cluster-wide
    How far a record's own timestamp may lie in the past.
log.message.timestamp.after.max.ms    LONG    3600000      >=0   cluster-wide
    How far a record's own timestamp may lie in the future.

# Log segments
log.segment.bytes                     INT     1073741824   >=1048576  cluster-wide high
    Size at which a partition's log starts its next segment file.
log.roll.ms                           LONG    null         >=1   cluster-wide high
    Age at which a log starts its next segment file; not set, log.roll.hours counts.
log.roll.hours                        INT     168          >=1   high
    Age at which a log starts its next segment file, in hours.
log.roll.jitter.ms                    LONG    null         >=0   cluster-wide high
    Random time taken off log.roll.ms; not set, log.roll.jitter.hours counts.
log.roll.jitter.hours                 INT     0            >=0   high
    Random time taken off log.roll.hours, in hours.
log.index.size.max.bytes              INT     10485760     >=4   cluster-wide
    Largest size of a segment's index.
log.index.interval.bytes              INT     4096         >=0   cluster-wide
    Bytes of log between two entries of the offset index. More than 65536 count as 65536.
log.segment.delete.delay.ms           LONG    60000        >=0   cluster-wide high
    How long a deleted segment stays on disk, for readers that are still busy with it.
log.preallocate                       BOOLEAN false        -     cluster-wide unused
    Reserve a new segment's whole size on disk. Without effect: space is reserved as a segment grows.

log.dir.min.free.bytes                LONG    -1           >=-1  cluster-wide
    Bytes of the disk that producers may not fill, so that the broker can still work; they are refused until there
    is more. 0 for none; -1 for a hundredth of the file system, at most 256 MiB. Ottla's own key.

# Retention and compaction
log.retention.ms                      LONG    null         @not-zero  cluster-wide high
    How long records are kept; -1 for ever; not set, log.retention.minutes counts.
log.retention.minutes                 INT     null         @not-zero  high
    How long records are kept, in minutes; not set, log.retention.hours counts.
log.retention.hours                   INT     168          @not-zero  high
    How long records are kept, in hours.
log.retention.bytes                   LONG    -1           -     cluster-wide high
    How much a partition keeps; -1 for no limit.
log.retention.check.interval.ms       LONG    300000       >=1
    How often old segments are looked for.
log.cleanup.policy                    LIST    delete       [compact,delete]  cluster-wide
    What happens to old segments: delete, compact, or both.
log.cleaner.enable                    BOOLEAN true         -
    Run compaction; without it topics with cleanup.policy=compact grow for ever.
log.cleaner.threads                   INT     1            >=0   cluster-wide
    How many logs are compacted at once, each by a process of its own.
log.cleaner.backoff.ms                LONG    15000        >=0   cluster-wide
    Pause of compaction when there is nothing to do.
log.cleaner.dedupe.buffer.size        LONG    134217728    -     cluster-wide
    Memory for the keys seen by compaction, shared by its processes, 24 bytes a key; more keys take more passes.
log.cleaner.io.buffer.load.factor     DOUBLE  0.9          -     cluster-wide
    How full the table of keys may become; fuller means fewer passes and slower ones.
log.cleaner.io.max.bytes.per.second   DOUBLE  1.7976931348623157E308  -  cluster-wide
    Limit on what compaction reads and writes.
log.cleaner.min.cleanable.ratio       DOUBLE  0.5          0..1  cluster-wide
    Share of a log that must be uncompacted before compaction looks at it.
log.cleaner.min.compaction.lag.ms     LONG    0            >=0   cluster-wide
    The shortest time a record stays uncompacted.
log.cleaner.max.compaction.lag.ms     LONG    9223372036854775807  >=1  cluster-wide
    The longest time a record stays uncompacted.
log.cleaner.delete.retention.ms       LONG    86400000     >=0   cluster-wide
    How long compaction keeps the marker of a deleted key.

# Durability and recovery
log.flush.interval.messages           LONG    9223372036854775807  >=1  cluster-wide high
    Force data to disk (fsync) after so many records of a partition.
log.flush.interval.ms                 LONG    null         >=0   cluster-wide high
    Force data to disk (fsync) when it is so old; not set, log.flush.scheduler.interval.ms counts.
log.flush.scheduler.interval.ms       LONG    9223372036854775807  >=0  high
    How often the need to flush is looked at in Kafka; here the age for flushing if log.flush.interval.ms is not set.
log.flush.offset.checkpoint.interval.ms        INT  60000  >=0   high
    How often the point up to which data is known to be on disk is written down, which bounds recovery.
log.flush.start.offset.checkpoint.interval.ms  INT  60000  >=0   high unused
    How often the start of each log is written down. Written together with the recovery points.
num.recovery.threads.per.data.dir     INT     2            >=1   cluster-wide high unused
    Threads that open and recover logs. Without effect: logs are opened one after the other.

# Producers
producer.id.expiration.ms             INT     86400000     >=1   cluster-wide low
    Forget an idempotent producer that has been silent so long.
producer.id.max.per.partition         INT     10000        >=1   cluster-wide low
    Idempotent producers that a partition remembers; beyond it those that have been silent for longest are forgotten. Ottla's own key.
producer.id.max.per.broker            INT     250000       >=1   cluster-wide low
    Idempotent producers that all partitions of a broker remember; beyond it those with the most forget the idlest. Ottla's own key.
producer.id.expiration.check.interval.ms  INT  600000      >=1   low internal
    How often silent producers are looked for.

# Replication
replica.lag.time.max.ms               LONG    30000        >=1   high
    A follower that has not caught up for so long is no longer in sync.
replica.fetch.max.bytes               INT     1048576      >=0
    Most data of one partition that a follower asks for at once.
replica.fetch.response.max.bytes      INT     10485760     >=0
    Most data that a follower asks for at once.
replica.fetch.min.bytes               INT     1            -     high
    Least data for which a leader answers a follower at once.
replica.fetch.wait.max.ms             INT     500          -     high
    Longest time a leader holds a follower's fetch.
replica.fetch.backoff.ms              INT     1000         >=0
    Pause of a follower after an error.
replica.socket.timeout.ms             INT     30000        -     high
    Longest time a follower waits for its leader's answer.
replica.high.watermark.checkpoint.interval.ms  LONG  5000  >=1   high
    How often high watermarks are written down.
num.replica.fetchers                  INT     1            >=1   cluster-wide high unused
    Connections over which a follower fetches from one leader.
auto.leader.rebalance.enable          BOOLEAN true         -     high
    Give leadership back to the first replica of each partition.
leader.imbalance.check.interval.seconds  LONG  300         >=1   high
    How often leadership is looked at for auto.leader.rebalance.enable.
broker.heartbeat.interval.ms          INT     2000         -
    How often a broker sends a heartbeat to the controller.
broker.session.timeout.ms             INT     9000         -
    A broker that has been silent so long counts as dead.
controlled.shutdown.enable            BOOLEAN true         -
    Move leadership away before a broker stops.

# Consumer groups and offsets
group.initial.rebalance.delay.ms      INT     3000         -
    How long a new group waits for more members before its first rebalance.
group.min.session.timeout.ms          INT     6000         -
    Least session timeout a member may ask for.
group.max.session.timeout.ms          INT     1800000      -
    Most session timeout a member may ask for.
group.max.size                        INT     2147483647   >=1
    Most members of a group.
group.coordinator.rebalance.protocols  LIST   classic,consumer,streams  [consumer,classic,share,streams]
    The kinds of groups that are served.
group.consumer.session.timeout.ms     INT     45000        >=1
    Session timeout of the new consumer protocol.
group.consumer.min.session.timeout.ms  INT    45000        >=1   unused
    Least session timeout a group may be configured with.
group.consumer.max.session.timeout.ms  INT    60000        >=1   unused
    Most session timeout a group may be configured with.
group.consumer.heartbeat.interval.ms  INT     5000         >=1
    Longest time between two heartbeats in the new consumer protocol; members are mostly told less.
group.consumer.min.heartbeat.interval.ms  INT  5000        >=1   unused
    Least heartbeat interval a group may be configured with.
group.consumer.max.heartbeat.interval.ms  INT  15000       >=1   unused
    Most heartbeat interval a group may be configured with.
group.consumer.assignment.interval.ms  INT    1000         >=0   cluster-wide
    Least time between two assignments of a group.
group.consumer.min.assignment.interval.ms  INT  0          >=0   unused
    Least assignment interval a group may be configured with.
group.consumer.max.assignment.interval.ms  INT  15000      >=0   unused
    Most assignment interval a group may be configured with.
group.consumer.max.size               INT     2147483647   >=1
    Most members of a group of the new consumer protocol.
group.consumer.assignors              LIST    uniform,range  -
    Assignors of the new consumer protocol, the first one being the default.
group.consumer.migration.policy       STRING  bidirectional  ~DISABLED|DOWNGRADE|UPGRADE|BIDIRECTIONAL
    Whether groups may move between the classic and the new consumer protocol.
group.registry.projection             BOOLEAN false        -     cluster-wide low
    Show members, owners and committed offsets of groups in the registry below /consumers, as the first Kafka kept them there. Ottla's own key.
offsets.topic.num.partitions          INT     50           >=1   high
    Partitions of the topic that keeps committed offsets.
offsets.topic.replication.factor      SHORT   3            >=1   high
    Replicas of the topic that keeps committed offsets.
offsets.topic.segment.bytes           INT     104857600    >=1   high
    Segment size of the topic that keeps committed offsets.
offsets.topic.compression.codec       INT     0            0..4  high
    Compression of the topic that keeps committed offsets, by number.
offsets.retention.minutes             INT     10080        >=1   high
    How long offsets of an empty group are kept.
offsets.retention.check.interval.ms   LONG    600000       >=1   high
    How often expired offsets are looked for.
offsets.commit.timeout.ms             INT     5000         >=1   high
    Longest time an offset commit waits for its replicas.
offset.metadata.max.bytes             INT     4096         -     high
    Most metadata with a committed offset.

# Transactions
transaction.max.timeout.ms            INT     900000       >=1   high
    Longest transaction timeout a producer may ask for.
transactional.id.expiration.ms        INT     604800000    >=1   high
    Forget a transactional id that has been silent so long.
transactional.id.max.per.broker       INT     250000       >=1   cluster-wide low
    Transactional ids that a broker remembers as their coordinator; beyond it those are forgotten that were not used for longest and have no transaction open. Ids of more than 250 characters count several times. Ottla's own key.
transaction.state.log.num.partitions  INT     50           >=1   high
    Partitions of the topic that keeps transactions.
transaction.state.log.replication.factor  SHORT  3         >=1   high
    Replicas of the topic that keeps transactions.
transaction.state.log.min.isr         INT     2            >=1   high
    min.insync.replicas of the topic that keeps transactions.
transaction.state.log.segment.bytes   INT     104857600    >=1   high
    Segment size of the topic that keeps transactions.
transaction.abort.timed.out.transaction.cleanup.interval.ms  INT  10000  >=1  low
    How often transactions that ran out of time are looked for.
transaction.remove.expired.transaction.cleanup.interval.ms   INT  3600000  >=1  low
    How often expired transactional ids are looked for.
add.partitions.to.txn.retry.backoff.ms  INT     20         >=1   high
    Pause between two attempts of a leader to add its partition to a transaction, while the one before is being completed.
add.partitions.to.txn.retry.backoff.max.ms  INT  100       >=0   high
    So long a leader makes such attempts; then the producer tries again.
transaction.partition.verification.enable  BOOLEAN  true   -     cluster-wide low
    Check that a partition is part of the transaction whose records it gets.
"""
