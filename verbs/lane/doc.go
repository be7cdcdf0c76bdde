// Package lane has what contexts do with queue pairs, however they are connected: a
// [Lane] is one queue pair with its send requests, which wait, are posted, and complete
// in the order of submission; a [Group] is the lanes that share a completion queue.
// Packages rdma and dma build on it.
//
// A lane does not know how its peer was found. Its owner brings the queue pair up
// ([Lane.Connect]) and pushes requests ([Lane.Push]); their ends are reported to a
// [Completer]. When the connection ends, the owner shuts the lane ([Lane.Shut]). Once
// the device has given back what was posted, [Group.Drained] returns the lane; the owner
// flushes what was never posted ([Lane.Flush]) and closes it.
//
// A request ends only when the device no longer uses its memory. Where the device does not
// give back what was posted, in the time of [Group.Limit], the queue pair is destroyed before
// the requests are flushed. Where that fails too, they end with an error that says so
// ([Request.Kept]).
//
// Nothing that a group does takes longer for lanes that have nothing to do. A group and
// its lanes belong to the goroutine that drives the context's engine. [Events] alone may
// be used from others: it takes events of the device to that goroutine.
package lane
