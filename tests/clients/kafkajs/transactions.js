// What a broker owes kafkajs as a transactional producer (of the first protocol), and as a group that consumes,
// transforms and produces in transactions.
//
// kafkajs does not name the member and generation when it commits offsets in a transaction, and does not ask for stable
// offsets. So each partition has a transactional id of its own: its next reader fences the one before, and only then
// looks where that one came to.
'use strict'

const PARTITIONS = 3
const AHEAD = 200 // records in the input that are not in the output yet, as long as members come and go
let client // what conformance.js lends

async function checkTransactions(lent) {
  client = lent
  await client.check('commit and abort', commitAndAbort)
  await client.check('an open transaction is invisible', openTransaction)
  await client.check('a transaction runs out of time', outOfTime)
  await client.check('a second instance fences the first', fence)
  await client.check('copy with rebalances in between, classic', copyWithRebalances)
}

async function commitAndAbort() {
  const topic = await client.create(PARTITIONS)
  const producer = await transactional(client.name())
  for (let i = 0; i < 4; i++) {
    const messages = Array.from({ length: PARTITIONS }, (_, partition) => ({ partition, value: `${i}-${partition}` }))
    const transaction = await producer.transaction()
    await transaction.send({ topic, messages })
    await (i % 2 === 0 ? transaction.commit() : transaction.abort())
  }
  await producer.disconnect()
  client.equal(await contents(topic, PARTITIONS), ['0-0', '0-1', '0-2', '2-0', '2-1', '2-2'])
  client.equal((await contents(topic, PARTITIONS, { readUncommitted: true })).length, 4 * PARTITIONS)
}

async function openTransaction() {
  const topic = await client.create(1)
  const producer = await transactional(client.name())
  await client.send({}, { topic, messages: [{ value: 'before' }] })
  const transaction = await producer.transaction()
  await transaction.send({ topic, messages: [{ value: 'soon' }] })
  await client.send({}, { topic, messages: [{ value: 'after' }] })
  const committed = await read(topic)
  const all = await read(topic, { readUncommitted: true })
  await client.until(() => all.values.length === 3 && committed.values.length > 0)
  client.equal(committed.values, ['before'])
  await transaction.commit()
  await client.until(() => committed.values.length === 3)
  client.equal(committed.values, ['before', 'soon', 'after'])
  await Promise.all([committed.leave(), all.leave(), producer.disconnect()])
}

async function outOfTime() {
  const topic = await client.create(1)
  const id = client.name()
  const producer = await transactional(id, { transactionTimeout: 1_000 })
  const transaction = await producer.transaction()
  await transaction.send({ topic, messages: [{ value: 'late' }] })
  // A reader gets past it only when the coordinator has aborted it.
  client.equal(await contents(topic, 1), [])
  await refused(transaction.commit())
  await write(id, topic, 'next')
  client.equal(await contents(topic, 1), ['next'])
  await producer.disconnect()
}

async function fence() {
  const topic = await client.create(1)
  const id = client.name()
  const first = await transactional(id)
  const transaction = await first.transaction()
  await transaction.send({ topic, messages: [{ value: 'zombie' }] })
  await write(id, topic, 'heir')
  await refused(transaction.commit())
  await write(id, topic, 'again')
  client.equal(await contents(topic, 1), ['again', 'heir'])
  await first.disconnect()
}

// The second member joins and leaves while the first one copies, a third one takes over.
async function copyWithRebalances() {
  const input = await client.create(PARTITIONS)
  const output = await client.create(PARTITIONS)
  const total = { copied: 0 }
  const feeder = feed(input, total)
  const first = await copier(input, output, total)
  await client.until(() => first.copied >= 50)
  const second = await copier(input, output, total)
  await client.until(() => second.copied >= 20)
  await second.leave()
  const before = first.copied
  await client.until(() => first.copied >= before + 50)
  const third = await copier(input, output, total)
  await client.until(() => third.copied >= 20)
  await first.leave()
  const sent = await feeder.end()
  await client.until(() => total.copied >= sent.length)
  await third.leave()
  client.equal(await contents(output, PARTITIONS), sent.sort())
}

function feed(topic, total) {
  const sent = []
  let over = false
  const running = (async () => {
    const producer = client.kafka.producer()
    await producer.connect()
    while (!over) {
      await client.until(() => over || sent.length < total.copied + AHEAD)
      const value = `r${sent.length}`
      await producer.send({ topic, messages: [{ partition: sent.length % PARTITIONS, value }] })
      sent.push(value.toUpperCase())
    }
    await producer.disconnect()
  })()
  return {
    async end() {
      over = true
      await running
      return sent
    },
  }
}

async function copier(input, output, total) {
  const consumer = client.kafka.consumer({ groupId: input, heartbeatInterval: 300, maxWaitTimeInMs: 100 })
  const owned = new Map() // for each partition a producer, and the offset of the next record to copy
  const member = { copied: 0, leave }

  async function forget(partition) {
    const { producer } = owned.get(partition)
    owned.delete(partition)
    await producer.disconnect()
  }

  async function leave() {
    await consumer.disconnect()
    await Promise.all([...owned.keys()].map(forget))
  }

  async function take(partition) {
    if (!owned.has(partition)) {
      const producer = await transactional(`${input}-${partition}`)
      await (await producer.transaction()).abort() // fences the reader before, and waits for the end of what it began
      const [{ partitions }] = await client.admin.fetchOffsets({ groupId: input, topics: [input] })
      owned.set(partition, { producer, next: Number(partitions.find(each => each.partition === partition).offset) })
    }
    return owned.get(partition)
  }

  consumer.on(consumer.events.GROUP_JOIN, () => {
    for (const partition of owned.keys()) forget(partition)
  })
  await consumer.connect()
  await consumer.subscribe({ topics: [input], fromBeginning: true })
  await consumer.run({
    autoCommit: false,
    eachBatchAutoResolve: false,
    eachBatch: async ({ batch: { partition, messages }, resolveOffset }) => {
      const state = await take(partition)
      const due = messages.filter(message => Number(message.offset) >= state.next).slice(0, 10)
      if (due.length > 0) {
        const offset = String(Number(due[due.length - 1].offset) + 1)
        const copies = due.map(message => ({ partition, value: String(message.value).toUpperCase() }))
        try {
          const transaction = await state.producer.transaction()
          await transaction.send({ topic: output, messages: copies })
          await transaction.sendOffsets({
            consumerGroupId: input, topics: [{ topic: input, partitions: [{ partition, offset }] }],
          })
          await transaction.commit()
        } catch (fenced) {
          // Another member has the partition, or the next try asks again where to go on.
          await forget(partition)
          return
        }
        state.next = Number(offset)
        member.copied += due.length
        total.copied += due.length
      }
      resolveOffset(due.length > 0 ? due[due.length - 1].offset : messages[messages.length - 1].offset)
    },
  })
  return member
}

// -- means ----------------------------------------------------------------------------------------------------

async function transactional(transactionalId, settings = {}) {
  const producer = client.kafka.producer({ transactionalId, maxInFlightRequests: 1, idempotent: true, ...settings })
  await producer.connect()
  return producer
}

async function write(id, topic, value) {
  const producer = await transactional(id)
  const transaction = await producer.transaction()
  await transaction.send({ topic, messages: [{ value }] })
  await transaction.commit()
  await producer.disconnect()
}

async function refused(promise) {
  let failure = null
  try {
    await promise
  } catch (thrown) {
    failure = thrown
  }
  const types = failure && [failure, failure.cause].map(each => each && each.type)
  if (!types || !types.some(type => ['INVALID_PRODUCER_EPOCH', 'PRODUCER_FENCED'].includes(type))) {
    throw new Error(`not fenced: ${failure && failure.stack}`)
  }
}

// A reader of a whole topic, as the only member of a group.
async function read(topic, settings = {}) {
  const consumer = client.kafka.consumer({ groupId: client.name(), maxWaitTimeInMs: 100, ...settings })
  const values = []
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ message }) => {
      values.push(String(message.value))
    },
  })
  return { values, leave: () => consumer.disconnect() }
}

// What a reader finds in the whole topic, sorted. It reads up to records that are written now.
async function contents(topic, partitions, settings) {
  const end = `end-${client.name()}`
  await client.send({}, { topic, messages: Array.from({ length: partitions }, (_, partition) => ({ partition, value: end })) })
  const reader = await read(topic, settings)
  await client.until(() => reader.values.filter(value => value === end).length === partitions)
  await reader.leave()
  return reader.values.filter(value => !value.startsWith('end-')).sort()
}

module.exports = { checkTransactions }
