// Package rdma has the RDMA context: reliable connections between programs, and
// tasks that send, receive, read, write and do atomics over them.
package rdma
