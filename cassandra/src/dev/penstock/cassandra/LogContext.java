package dev.penstock.cassandra;

import org.apache.cassandra.db.ConsistencyLevel;
import org.apache.cassandra.transport.Dispatcher;

/** What the log takes from the request that it logs. */
public final class LogContext {
    final ConsistencyLevel consistency;
    final long nowInSeconds;
    final Dispatcher.RequestTime requestTime;

    public LogContext(ConsistencyLevel consistency, long nowInSeconds, Dispatcher.RequestTime requestTime) {
        this.consistency = consistency;
        this.nowInSeconds = nowInSeconds;
        this.requestTime = requestTime;
    }
}
