"""The keys of a consumer group, as Apache Kafka 4.3 has them. `rows` explains the notation.

A group without a value of its own takes the broker's. A change takes effect with the next heartbeat of a
member. What is set for kinds of groups that Ottla does not have is kept and shown.
"""

TABLE = """
# Consumer groups
consumer.session.timeout.ms        INT     45000   >=1
    <- group.consumer.session.timeout.ms
    A member that has been silent so long is removed.
consumer.heartbeat.interval.ms     INT     5000    >=1
    <- group.consumer.heartbeat.interval.ms
    How often members are told to send heartbeats.
consumer.assignment.interval.ms    INT     1000    >=0
    <- group.consumer.assignment.interval.ms
    Least time between two assignments of the group.

# Share groups, which Ottla does not have
share.session.timeout.ms           INT     45000   >=1
    <- group.share.session.timeout.ms
    A member that has been silent so long is removed.
share.heartbeat.interval.ms        INT     5000    >=1
    <- group.share.heartbeat.interval.ms
    How often members are told to send heartbeats.
share.assignment.interval.ms       INT     1000    >=0
    <- group.share.assignment.interval.ms
    Least time between two assignments of the group.
share.record.lock.duration.ms      INT     30000   >=1000
    <- group.share.record.lock.duration.ms
    How long a member may hold a record.
share.delivery.count.limit         INT     5       >=2
    <- group.share.delivery.count.limit
    How often a record is tried.
share.partition.max.record.locks   INT     2000    >=100
    <- group.share.partition.max.record.locks
    Most records of a partition that are held at one time.
share.auto.offset.reset            STRING  latest  @share-reset
    Where a new group starts: latest, earliest, or by_duration: and an ISO-8601 duration.
share.isolation.level              STRING  read_uncommitted  read_committed|read_uncommitted
    Whether records of open transactions are delivered.
share.renew.acknowledge.enable     BOOLEAN true    -
    Let members renew the lock on a record.

# Streams groups, which Ottla does not have
streams.session.timeout.ms         INT     45000   >=1
    <- group.streams.session.timeout.ms
    A member that has been silent so long is removed.
streams.heartbeat.interval.ms      INT     5000    >=1
    <- group.streams.heartbeat.interval.ms
    How often members are told to send heartbeats.
streams.assignment.interval.ms     INT     1000    >=0
    <- group.streams.assignment.interval.ms
    Least time between two assignments of the group.
streams.num.standby.replicas       INT     0       >=0
    <- group.streams.num.standby.replicas
    Standby copies of each task's state.
streams.initial.rebalance.delay.ms INT     3000    >=0
    <- group.streams.initial.rebalance.delay.ms
    How long a new group waits for more members.
"""
