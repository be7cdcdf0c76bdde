// Package rsocket has net.Conn and net.Listener over RDMA.
package rsocket
