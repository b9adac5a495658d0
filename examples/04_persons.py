"""Who visits: cookies and e-mail hashes that were seen together become one person, who is written beside each visit.

    penstock up --only cassandra                  # prints the address
    CQL=... penstock run examples/04_persons.py:visitors

The tables, made with any CQL client; `cql.create` makes those of matching:

    CREATE KEYSPACE ads WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1};
    CREATE TABLE ads.visits (id int PRIMARY KEY, cookie text, email_hash text)
        WITH cdc = {'enabled': true, 'postimage': true};
    CREATE TABLE ads.visitors (id int PRIMARY KEY, person text);
"""

import os

from pyspark.sql import SparkSession

import penstock as ps
from penstock import cdc, cql

CQL = os.environ.get("CQL", "127.0.0.1:9042")
IDS = cql.ids("ads", hosts=CQL)


@ps.pipeline(every="1 second")
def visitors(spark: SparkSession) -> ps.Query:
    cql.create(IDS, replication={"class": "SimpleStrategy", "replication_factor": 1})  # if they do not exist
    changes = cdc.read(spark, "ads.visits", hosts=CQL, name="visits", images=("none", "full"), confidence="1 second")
    visits = changes.where("op != 'd'").select("after.*")
    ids = ["cookie", "email_hash"]
    persons = visits.transform(cql.match, store=IDS, ids=ids, into="person", unknown="create", ttl="30 days")
    return ps.write(persons.select("id", "person"), cql.sink("ads.visitors", hosts=CQL, ttl="30 days"))
