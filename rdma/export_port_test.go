package rdma

import "time"

// For tests: the words of failures that come after minutes.
var (
	OnSilence    = (*Connection).onSilence
	TimeoutError = func(conn *Connection) error { return conn.timeoutError(time.Second) }
)
