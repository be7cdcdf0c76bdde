// Package buffers has the memory of connections: the receive buffers that peers write to, and the
// send memory that all connections of a stack share. The lock of a connection guards its Inbound
// and its Outbound.
package buffers
