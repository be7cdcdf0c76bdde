// Package lane keeps the send requests of each queue pair in order: they wait while the send
// queue is full, are posted, and complete. A [Lane] is one queue pair with its requests. A
// [Group] is the lanes that share a completion queue. Packages rdma and dma build on it.
//
// A lane does not know how its peer was found. Its owner connects the queue pair
// ([Lane.Connect]) and pushes requests ([Lane.Push]); their ends are reported to a
// [Completer]. When the connection ends, the owner shuts the lane ([Lane.Shut]). Once the
// device has given back what was posted, [Group.Drained] returns the lane; the owner flushes
// what was never posted ([Lane.Flush]) and closes the lane.
//
// A request ends only when the device no longer uses its memory. If the device does not give
// back what was posted within the time of [Group.Limit], the queue pair is destroyed before
// the requests are flushed. If that fails too, the requests end with an error that says so
// ([Request.Kept]).
//
// Idle lanes cost a group nothing. A group and its lanes belong to the goroutine that drives
// the context's engine. Only [Events] may be used from others: it passes events of the device
// to that goroutine.
package lane
