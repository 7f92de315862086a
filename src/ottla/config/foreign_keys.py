"""The keys of a broker that Apache Kafka 4.3 knows and Ottla does nothing with.

They are here so that a server.properties made for Kafka is read without a warning, that their values are still
checked, and that tools which list a broker's configuration find what they look for. The section says why a key
has no effect. `rows` explains the notation.
"""

# ruff: noqa: E501
TABLE = """
# Security, which is not built yet
authorizer.class.name                                STRING    ''  - low
connection.failed.authentication.delay.ms            INT       100  >=0 low
connections.max.reauth.ms                            LONG      0  -
delegation.token.expiry.check.interval.ms            LONG      3600000  >=1 low
delegation.token.expiry.time.ms                      LONG      86400000  >=1
delegation.token.max.lifetime.ms                     LONG      604800000  >=1
delegation.token.secret.key                          PASSWORD  null  -
early.start.listeners                                LIST      null  - high
principal.builder.class                              CLASS     org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder  - per-broker
sasl.client.callback.handler.class                   CLASS     null  -
sasl.enabled.mechanisms                              LIST      GSSAPI  - per-broker
sasl.jaas.config                                     PASSWORD  null  - per-broker
sasl.kerberos.kinit.cmd                              STRING    /usr/bin/kinit  - per-broker
sasl.kerberos.min.time.before.relogin                LONG      60000  - per-broker
sasl.kerberos.principal.to.local.rules               LIST      DEFAULT  - per-broker
sasl.kerberos.service.name                           STRING    null  - per-broker
sasl.kerberos.ticket.renew.jitter                    DOUBLE    0.05  - per-broker
sasl.kerberos.ticket.renew.window.factor             DOUBLE    0.8  - per-broker
sasl.login.callback.handler.class                    CLASS     null  -
sasl.login.class                                     CLASS     null  -
sasl.login.connect.timeout.ms                        INT       null  - low
sasl.login.read.timeout.ms                           INT       null  - low
sasl.login.refresh.buffer.seconds                    SHORT     300  - per-broker
sasl.login.refresh.min.period.seconds                SHORT     60  - per-broker
sasl.login.refresh.window.factor                     DOUBLE    0.8  - per-broker
sasl.login.refresh.window.jitter                     DOUBLE    0.05  - per-broker
sasl.login.retry.backoff.max.ms                      LONG      10000  - low
sasl.login.retry.backoff.ms                          LONG      100  - low
sasl.mechanism.controller.protocol                   STRING    GSSAPI  - high
sasl.mechanism.inter.broker.protocol                 STRING    GSSAPI  - per-broker
sasl.oauthbearer.assertion.algorithm                 STRING    RS256  ~ES256|RS256
sasl.oauthbearer.assertion.claim.aud                 STRING    null  -
sasl.oauthbearer.assertion.claim.exp.seconds         INT       300  0..86400 low
sasl.oauthbearer.assertion.claim.iss                 STRING    null  -
sasl.oauthbearer.assertion.claim.jti.include         BOOLEAN   false  -
sasl.oauthbearer.assertion.claim.nbf.seconds         INT       60  0..3600 low
sasl.oauthbearer.assertion.claim.sub                 STRING    null  -
sasl.oauthbearer.assertion.file                      STRING    null  -
sasl.oauthbearer.assertion.private.key.file          STRING    null  -
sasl.oauthbearer.assertion.private.key.passphrase    PASSWORD  null  -
sasl.oauthbearer.assertion.template.file             STRING    null  -
sasl.oauthbearer.client.credentials.client.id        STRING    null  -
sasl.oauthbearer.client.credentials.client.secret    PASSWORD  null  -
sasl.oauthbearer.clock.skew.seconds                  INT       30  - low
sasl.oauthbearer.expected.audience                   LIST      ''  - high
sasl.oauthbearer.expected.issuer                     STRING    null  - high
sasl.oauthbearer.jwks.endpoint.refresh.ms            LONG      3600000  - low
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms  LONG      10000  - low
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms      LONG      100  - low
sasl.oauthbearer.jwks.endpoint.url                   STRING    null  -
sasl.oauthbearer.jwt.retriever.class                 CLASS     org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever  -
sasl.oauthbearer.jwt.validator.class                 CLASS     org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator  -
sasl.oauthbearer.scope                               STRING    null  -
sasl.oauthbearer.scope.claim.name                    STRING    scope  - low
sasl.oauthbearer.sub.claim.name                      STRING    sub  - low
sasl.oauthbearer.token.endpoint.url                  STRING    null  -
sasl.server.callback.handler.class                   CLASS     null  -
sasl.server.max.receive.size                         INT       524288  -
security.inter.broker.protocol                       STRING    PLAINTEXT  PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL
security.providers                                   STRING    null  - low
ssl.allow.dn.changes                                 BOOLEAN   false  - low
ssl.allow.san.changes                                BOOLEAN   false  - low
ssl.cipher.suites                                    LIST      ''  - per-broker
ssl.client.auth                                      STRING    none  required|requested|none per-broker
ssl.enabled.protocols                                LIST      TLSv1.2,TLSv1.3  - per-broker
ssl.endpoint.identification.algorithm                STRING    https  - per-broker low
ssl.engine.factory.class                             CLASS     null  - per-broker low
ssl.key.password                                     PASSWORD  null  - per-broker
ssl.keymanager.algorithm                             STRING    SunX509  - per-broker
ssl.keystore.certificate.chain                       PASSWORD  null  - per-broker
ssl.keystore.key                                     PASSWORD  null  - per-broker
ssl.keystore.location                                STRING    null  - per-broker
ssl.keystore.password                                PASSWORD  null  - per-broker
ssl.keystore.type                                    STRING    JKS  - per-broker
ssl.principal.mapping.rules                          STRING    DEFAULT  - low
ssl.protocol                                         STRING    TLSv1.3  - per-broker
ssl.provider                                         STRING    null  - per-broker
ssl.secure.random.implementation                     STRING    null  - per-broker low
ssl.trustmanager.algorithm                           STRING    PKIX  - per-broker
ssl.truststore.certificates                          PASSWORD  null  - per-broker
ssl.truststore.location                              STRING    null  - per-broker
ssl.truststore.password                              PASSWORD  null  - per-broker
ssl.truststore.type                                  STRING    JKS  - per-broker

# KRaft's quorum, in whose place Ottla has its registry
controller.listener.names                        LIST      null  - high
controller.performance.always.log.threshold.ms   LONG      2000  >=0 internal
controller.performance.sample.period.ms          LONG      60000  >=100 internal
controller.quorum.append.linger.ms               INT       25  >=0
controller.quorum.auto.join.enable               BOOLEAN   false  - low
controller.quorum.bootstrap.servers              LIST      ''  - high
controller.quorum.election.backoff.max.ms        INT       1000  >=0 high
controller.quorum.election.timeout.ms            INT       1000  >=0 high
controller.quorum.fetch.max.bytes                INT       1048576  >=1 low
controller.quorum.fetch.snapshot.max.bytes       INT       1048576  >=1 low
controller.quorum.fetch.timeout.ms               INT       2000  >=0 high
controller.quorum.request.timeout.ms             INT       2000  >=0
controller.quorum.retry.backoff.ms               INT       20  >=0 low
controller.quorum.voters                         LIST      ''  - high
controller.quota.window.num                      INT       11  >=1 low
controller.quota.window.size.seconds             INT       1  >=1 low
controller.socket.timeout.ms                     INT       30000  -
initial.broker.registration.timeout.ms           INT       60000  -
internal.metadata.delete.delay.millis            LONG      60000  - low internal
internal.metadata.log.segment.bytes              INT       null  - low internal
internal.metadata.max.batch.size.in.bytes        INT       8388608  - low internal
metadata.log.dir                                 STRING    null  - high
metadata.log.max.record.bytes.between.snapshots  LONG      20971520  >=1 high
metadata.log.max.snapshot.interval.ms            LONG      3600000  >=0 high
metadata.log.segment.bytes                       INT       1073741824  >=8388608 high
metadata.log.segment.ms                          LONG      604800000  - high
metadata.max.idle.interval.ms                    INT       500  >=0 low
metadata.max.retention.bytes                     LONG      104857600  - high
metadata.max.retention.ms                        LONG      604800000  - high
process.roles                                    LIST      null  [broker,controller] high
server.max.startup.time.ms                       LONG      9223372036854775807  >=0 internal
unclean.leader.election.interval.ms              LONG      300000  >=1 internal
unstable.api.versions.enable                     BOOLEAN   false  - high internal
unstable.feature.versions.enable                 BOOLEAN   false  - high internal

# Tiered storage, which Ottla does not have
follower.fetch.last.tiered.offset.enable            BOOLEAN   false  - cluster-wide
log.local.retention.bytes                           LONG      -2  >=-2 cluster-wide
log.local.retention.ms                              LONG      -2  >=-2 cluster-wide
remote.fetch.max.wait.ms                            INT       500  >=1 cluster-wide
remote.list.offsets.request.timeout.ms              LONG      30000  >=1 cluster-wide
remote.log.index.file.cache.total.size.bytes        LONG      1073741824  >=1 cluster-wide low
remote.log.index.file.cache.ttl.ms                  LONG      900000  >=-1 low internal
remote.log.manager.copier.thread.pool.size          INT       10  >=1 cluster-wide
remote.log.manager.copy.max.bytes.per.second        LONG      9223372036854775807  >=1 cluster-wide
remote.log.manager.copy.quota.window.num            INT       11  >=1
remote.log.manager.copy.quota.window.size.seconds   INT       1  >=1
remote.log.manager.expiration.thread.pool.size      INT       10  >=1 cluster-wide
remote.log.manager.fetch.max.bytes.per.second       LONG      9223372036854775807  >=1 cluster-wide
remote.log.manager.fetch.quota.window.num           INT       11  >=1
remote.log.manager.fetch.quota.window.size.seconds  INT       1  >=1
remote.log.manager.follower.thread.pool.size        INT       2  >=1 cluster-wide
remote.log.manager.task.interval.ms                 LONG      30000  >=1 low
remote.log.manager.task.retry.backoff.max.ms        LONG      30000  >=1 low internal
remote.log.manager.task.retry.backoff.ms            LONG      500  >=1 low internal
remote.log.manager.task.retry.jitter                DOUBLE    0.2  - low internal
remote.log.manager.thread.pool.size                 INT       2  >=1
remote.log.metadata.custom.metadata.max.bytes       INT       128  >=0 low
remote.log.metadata.manager.class.name              STRING    org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager  -
remote.log.metadata.manager.class.path              STRING    null  -
remote.log.metadata.manager.impl.prefix             STRING    rlmm.config.  -
remote.log.metadata.manager.listener.name           STRING    null  -
remote.log.reader.max.pending.tasks                 INT       100  >=1
remote.log.reader.threads                           INT       10  >=1 cluster-wide
remote.log.storage.manager.class.name               STRING    null  -
remote.log.storage.manager.class.path               STRING    null  -
remote.log.storage.manager.impl.prefix              STRING    rsm.config.  -
remote.log.storage.system.enable                    BOOLEAN   false  -

# Share and streams groups, which Ottla does not have
group.share.assignment.interval.ms                      INT       1000  >=0 cluster-wide
group.share.assignors                                   LIST      simple  -
group.share.delivery.count.limit                        INT       5  2..10
group.share.heartbeat.interval.ms                       INT       5000  >=1
group.share.initialize.retry.interval.ms                INT       30000  >=1 low internal
group.share.max.assignment.interval.ms                  INT       15000  >=0
group.share.max.delivery.count.limit                    INT       10  5..25
group.share.max.heartbeat.interval.ms                   INT       15000  >=1
group.share.max.partition.max.record.locks              INT       4000  2000..10000
group.share.max.record.lock.duration.ms                 INT       60000  30000..3600000
group.share.max.session.timeout.ms                      INT       60000  >=1
group.share.max.share.sessions                          INT       2000  >=1
group.share.max.size                                    INT       200  1..1000
group.share.min.assignment.interval.ms                  INT       0  >=0
group.share.min.delivery.count.limit                    INT       2  2..5
group.share.min.heartbeat.interval.ms                   INT       5000  >=1
group.share.min.partition.max.record.locks              INT       100  100..2000
group.share.min.record.lock.duration.ms                 INT       15000  1000..30000
group.share.min.session.timeout.ms                      INT       45000  >=1
group.share.partition.max.record.locks                  INT       2000  100..10000
group.share.persister.class.name                        STRING    org.apache.kafka.server.share.persister.DefaultStatePersister  - internal
group.share.record.lock.duration.ms                     INT       30000  1000..3600000
group.share.session.timeout.ms                          INT       45000  >=1
group.streams.assignment.interval.ms                    INT       1000  >=0 cluster-wide
group.streams.heartbeat.interval.ms                     INT       5000  >=1
group.streams.initial.rebalance.delay.ms                INT       3000  >=0
group.streams.max.assignment.interval.ms                INT       15000  >=0
group.streams.max.heartbeat.interval.ms                 INT       15000  >=1
group.streams.max.session.timeout.ms                    INT       60000  >=1
group.streams.max.size                                  INT       2147483647  >=1
group.streams.max.standby.replicas                      INT       2  >=0
group.streams.min.assignment.interval.ms                INT       0  >=0
group.streams.min.heartbeat.interval.ms                 INT       5000  >=1
group.streams.min.session.timeout.ms                    INT       45000  >=1
group.streams.num.standby.replicas                      INT       0  >=0
group.streams.session.timeout.ms                        INT       45000  >=1
share.coordinator.append.linger.ms                      INT       -1  >=-1
share.coordinator.cached.buffer.max.bytes               INT       1048588  >=524288 cluster-wide
share.coordinator.cold.partition.snapshot.interval.ms   INT       300000  >=1 low internal
share.coordinator.load.buffer.size                      INT       5242880  >=1 high
share.coordinator.snapshot.update.records.per.snapshot  INT       500  0..500
share.coordinator.state.topic.compression.codec         INT       0  - high
share.coordinator.state.topic.min.isr                   SHORT     2  >=1 high
share.coordinator.state.topic.num.partitions            INT       50  >=1 high
share.coordinator.state.topic.prune.interval.ms         INT       300000  >=1 low internal
share.coordinator.state.topic.replication.factor        SHORT     3  >=1 high
share.coordinator.state.topic.segment.bytes             INT       104857600  >=1 high
share.coordinator.threads                               INT       1  >=1
share.coordinator.write.timeout.ms                      INT       5000  >=1 high
share.fetch.purgatory.purge.interval.requests           INT       1000  -

# Quotas and throttling, which are not built yet
alter.log.dirs.replication.quota.window.num           INT       11  >=1 low
alter.log.dirs.replication.quota.window.size.seconds  INT       1  >=1 low
client.quota.callback.class                           CLASS     null  - low
follower.replication.throttled.rate                   LONG      null  >=0 cluster-wide internal
leader.replication.throttled.rate                     LONG      null  >=0 cluster-wide internal
quota.window.num                                      INT       11  >=1 low
quota.window.size.seconds                             INT       1  >=1 low
replica.alter.log.dirs.io.max.bytes.per.second        LONG      null  >=0 cluster-wide internal
replication.quota.window.num                          INT       11  >=1 low
replication.quota.window.size.seconds                 INT       1  >=1 low

# Metrics and telemetry of the Java process
kafka.metrics.polling.interval.secs  INT       10  >=1 low
kafka.metrics.reporters              LIST      ''  - low
metric.reporters                     LIST      org.apache.kafka.common.metrics.JmxReporter  - cluster-wide low
metrics.num.samples                  INT       2  >=1 low
metrics.recording.level              STRING    INFO  - low
metrics.sample.window.ms             LONG      30000  >=1 low
telemetry.max.bytes                  INT       1048576  >=1 low

# Java classes that extend Kafka
alter.config.policy.class.name  CLASS     null  - low
config.providers                LIST      ''  - cluster-wide low
create.topic.policy.class.name  CLASS     null  - low
replica.selector.class          STRING    null  -

# Threads and buffers of Kafka's own design
background.threads                                INT       10  >=1 cluster-wide high
cordoned.log.dirs                                 LIST      ''  - per-broker
delete.records.purgatory.purge.interval.requests  INT       1  -
fetch.purgatory.purge.interval.requests           INT       1000  -
group.consumer.regex.refresh.interval.ms          INT       600000  >=10000 internal
group.coordinator.append.linger.ms                INT       -1  >=-1
group.coordinator.background.threads              INT       2  >=1 high
group.coordinator.cached.buffer.max.bytes         INT       1048588  >=524288 cluster-wide
group.coordinator.threads                         INT       4  >=1 high
log.cleaner.io.buffer.size                        INT       524288  >=0 cluster-wide
log.dir.failure.timeout.ms                        LONG      30000  >=1 low
log.initial.task.delay.ms                         LONG      30000  >=0 low internal
num.io.threads                                    INT       8  >=1 cluster-wide high
num.network.threads                               INT       3  >=1 cluster-wide high
num.replica.alter.log.dirs.threads                INT       null  - high
offsets.load.buffer.size                          INT       5242880  >=1 high
producer.purgatory.purge.interval.requests        INT       1000  -
queued.max.requests                               INT       500  >=1 high
replica.socket.receive.buffer.bytes               INT       65536  - high
request.timeout.ms                                INT       30000  - high
socket.connection.setup.timeout.max.ms            LONG      30000  -
socket.connection.setup.timeout.ms                LONG      10000  -
transaction.state.log.load.buffer.size            INT       5242880  >=1 high
transaction.two.phase.commit.enable               BOOLEAN   false  - low
"""
