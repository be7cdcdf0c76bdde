// Package lane has what contexts do with queue pairs, whatever is connected how: a
// [Lane] is one queue pair with its send requests in the order of submission,
// waiting, posted and completed; a [Group] is the lanes that share a completion
// queue. Packages rdma and dma build on it.
//
// A lane knows nothing of how its peer was found. Its owner brings the queue pair
// up ([Lane.Connect]), pushes requests, and learns of their end through
// [Completer]. When the connection ends, the owner shuts the lane; once the device
// has given back what was posted, the group hands the lane out ([Group.Drained]),
// and the owner closes it.
//
// Nothing that a group does grows with lanes that have nothing to do. A group and
// its lanes belong to the goroutine that drives the context's engine; only [Events]
// takes something from others.
package lane
