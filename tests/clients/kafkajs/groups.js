// What a broker owes kafkajs as a member of groups (of the classic protocol), and as an admin of them.
'use strict'

const { AssignerProtocol, PartitionAssigners } = require('kafkajs')

let readers = 0
let client // what conformance.js lends: its admin, its way to check, and the like

async function checkGroups(lent) {
  client = lent
  await client.check('share a topic, classic', share)
  await client.check('keep commits over a restart, classic', commits)
  await client.check('read partitions that are added, classic', grow)
  await client.check('list and describe groups, classic', describe)
  await client.check('list, alter and delete offsets, classic', offsets)
  await client.check('remove members and delete a group, classic', remove)
}

async function share() {
  const topic = await client.create(4)
  await produce(topic, 4, 10)
  const first = await join(topic)
  await client.until(() => first.owned.length === 4 && distinct(first) === 40)
  const second = await join(topic)
  await client.until(() => first.owned.length === 2 && second.owned.length === 2)
  client.equal([...first.owned, ...second.owned].sort(), [0, 1, 2, 3])
  await produce(topic, 4, 10)
  await client.until(() => distinct(first, second) === 80)
  await second.leave()
  await client.until(() => first.owned.length === 4)
  await produce(topic, 4, 10)
  await client.until(() => distinct(first, second) === 120)
  await first.leave()
}

async function commits() {
  const topic = await client.create(1)
  await produce(topic, 1, 10)
  const reader = await join(topic, { autoCommit: false })
  await client.until(() => distinct(reader) === 10)
  await reader.consumer.commitOffsets([{ topic, partition: 0, offset: '4', metadata: 'four' }])
  await reader.leave()
  const [{ partitions }] = await client.admin.fetchOffsets({ groupId: topic, topics: [topic] })
  client.equal(partitions, [{ partition: 0, offset: '4', metadata: 'four' }])
  const again = await join(topic)
  await client.until(() => distinct(again) === 6)
  await again.leave()
  client.equal(await committed(topic), ['10'])
}

async function grow() {
  const topic = await client.create(1)
  const member = await join(topic, {}, { metadataMaxAge: 300 })
  await client.until(() => member.owned.length === 1)
  await client.admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] })
  await client.until(() => member.owned.length === 3)
  await produce(topic, 3, 5)
  await client.until(() => distinct(member) === 15)
  await member.leave()
}

async function describe() {
  const topic = await client.create(4)
  const members = [await join(topic), await join(topic)]
  await client.until(() => members.every(member => member.owned.length === 2))
  await client.until(async () => (await described(topic)).state === 'Stable')
  const group = await described(topic)
  client.equal([group.protocolType, group.protocol], ['consumer', 'RoundRobinAssigner'])
  client.equal(group.members.length, 2)
  client.equal(group.members.map(member => member.clientId), ['conformance', 'conformance'])
  const assigned = group.members.flatMap(
    member => AssignerProtocol.MemberAssignment.decode(member.memberAssignment).assignment[topic],
  )
  client.equal(assigned.sort(), [0, 1, 2, 3])
  client.equal((await listed(topic)).protocolType, 'consumer')
  await Promise.all(members.map(member => member.leave()))
}

async function offsets() {
  const topic = await client.create(2)
  await produce(topic, 2, 10)
  const member = await join(topic)
  await client.until(() => distinct(member) === 20)
  await member.leave()
  client.equal(await committed(topic), ['10', '10'])
  await client.admin.setOffsets({ groupId: topic, topic, partitions: [{ partition: 0, offset: '3' }] })
  client.equal(await committed(topic), ['3', '10'])
  const again = await join(topic)
  await client.until(() => distinct(again) === 7)
  await again.leave()
  await client.admin.resetOffsets({ groupId: topic, topic, earliest: true })
  const once = await join(topic)
  await client.until(() => distinct(once) === 20)
  await once.leave()
}

async function remove() {
  const topic = await client.create(1)
  const member = await join(topic)
  await client.until(() => member.owned.length === 1)
  await refused('NON_EMPTY_GROUP', client.admin.deleteGroups([topic]))
  await member.leave()
  await client.admin.deleteGroups([topic])
  client.equal(await listed(topic), undefined)
  await refused('GROUP_ID_NOT_FOUND', client.admin.deleteGroups([topic]))
}

// -- members --------------------------------------------------------------------------------------------------

async function join(topic, run = {}, settings = {}) {
  const consumer = client.kafka.consumer({
    groupId: topic,
    heartbeatInterval: 300,
    maxWaitTimeInMs: 100,
    partitionAssigners: [PartitionAssigners.roundRobin],
    ...settings,
  })
  const member = { consumer, owned: [], received: new Set(), leave }
  async function leave() {
    await consumer.disconnect()
    member.owned = []
  }
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    member.owned = payload.memberAssignment[topic] || []
  })
  consumer.on(consumer.events.REBALANCING, () => {
    member.owned = []
  })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({
    ...run,
    eachMessage: async ({ partition, message }) => {
      member.received.add(`${partition}@${message.offset}`)
    },
  })
  return member
}

// All records of a topic's only partition, as the only member of a group reads them.
async function readBack(kafka, topic, count) {
  const consumer = kafka.consumer({ groupId: `${topic}-reader-${readers++}`, maxWaitTimeInMs: 100, maxBytesPerPartition: 2_000_000 })
  const messages = []
  await consumer.connect()
  try {
    await consumer.subscribe({ topics: [topic], fromBeginning: true })
    await new Promise((resolve, reject) => {
      const late = setTimeout(() => reject(new Error(`only ${messages.length} of ${count} records`)), 30_000)
      consumer.run({
        eachMessage: async ({ message }) => {
          messages.push(message)
          if (messages.length === count) {
            clearTimeout(late)
            resolve()
          }
        },
      }).catch(reject)
    })
  } finally {
    await consumer.disconnect()
  }
  return messages
}

function distinct(...members) {
  return new Set(members.flatMap(member => [...member.received])).size
}

async function produce(topic, partitions, each) {
  const messages = Array.from({ length: partitions * each }, (_, i) => ({ partition: i % partitions, value: `${i}` }))
  await client.send({}, { topic, messages })
}

async function committed(groupId) {
  const [{ partitions }] = await client.admin.fetchOffsets({ groupId, topics: [groupId] })
  return partitions.sort((a, b) => a.partition - b.partition).map(each => each.offset)
}

async function described(groupId) {
  return (await client.admin.describeGroups([groupId])).groups[0]
}

async function listed(groupId) {
  return (await client.admin.listGroups()).groups.find(group => group.groupId === groupId)
}

async function refused(type, promise) {
  let found = null
  try {
    await promise
  } catch (failure) {
    found = failure.groups && failure.groups[0].error && failure.groups[0].error.type
  }
  client.equal(found, type)
}

module.exports = { checkGroups, readBack }
