"""The clients that the conformance tests run, each unmodified."""

from conformance.clients.aio import AiokafkaClient
from conformance.clients.confluent import ConfluentClient
from conformance.clients.kafka_python import KafkaPythonClient
from conformance.clients.kcat import KcatClient

__all__ = ["CLIENTS", "AiokafkaClient", "ConfluentClient", "KafkaPythonClient", "KcatClient"]

CLIENTS = (ConfluentClient, KafkaPythonClient, AiokafkaClient, KcatClient)
