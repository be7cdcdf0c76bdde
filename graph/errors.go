package graph

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/verbena-rdma/verbena/internal/errs"
)

// Errors of this package, matched with errors.Is. Those of the engine come
// through wrapped.
var (
	// ErrInvalid: an argument has a value that can never be right.
	ErrInvalid = errs.ErrInvalid
	// ErrCycle: nodes wait for one another. The error is a *CycleError.
	ErrCycle = errors.New("graph has a cycle")
	// ErrEngine: a node's task belongs to an engine other than the graph's.
	ErrEngine = errors.New("the task belongs to another engine")
	// ErrPanicked: a function of a node did not return.
	ErrPanicked = errs.ErrPanicked
	// ErrFlushed: the graph was stopped before all nodes of the instance had run.
	ErrFlushed = errs.ErrFlushed
)

// CycleError names the nodes of a cycle. It matches ErrCycle.
type CycleError struct {
	Graph string   // its name
	Nodes []string // each precedes the next, and the last precedes the first
}

// Error names the nodes on the cycle.
func (e *CycleError) Error() string {
	nodes := e.Nodes
	if len(nodes) > 0 {
		nodes = append(slices.Clone(nodes), nodes[0])
	}
	return fmt.Sprintf("graph: build %q: %v: %s; leave out one of these edges", e.Graph, ErrCycle, strings.Join(nodes, " → "))
}

// Is makes the error match ErrCycle.
func (e *CycleError) Is(target error) bool { return target == ErrCycle }

// NodeError is the error of a node that was run and failed.
type NodeError struct {
	Node string // its name
	Err  error  // the error of its function or its task
}

// Error names the node and the reason.
func (e *NodeError) Error() string { return fmt.Sprintf("node %q: %v", e.Node, e.Err) }

// Unwrap returns the reason.
func (e *NodeError) Unwrap() error { return e.Err }

// RunError is the error of an instance that failed. It matches what its nodes'
// errors match, and ErrFlushed if the graph was stopped meanwhile.
type RunError struct {
	Graph   string       // its name
	Failed  []*NodeError // in the order in which they failed
	NotRun  []string     // because they depend on failed nodes, or were flushed
	Stopped bool         // the graph was stopped before these nodes were begun
	Cause   error        // why it was stopped (pe.Core.Err); nil if the program stopped it
}

// Error names the nodes that failed, with the reasons, and those that were not run.
func (e *RunError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "graph: run of %q: ", e.Graph)
	for i, n := range e.Failed {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(n.Error())
	}
	if len(e.NotRun) > 0 {
		if len(e.Failed) > 0 {
			b.WriteString("; ")
		}
		b.WriteString("not run: " + strings.Join(e.NotRun, ", "))
	}
	if e.Stopped {
		b.WriteString(" (" + ErrFlushed.Error() + ": the graph was stopped")
		if e.Cause != nil {
			b.WriteString(": " + e.Cause.Error())
		}
		b.WriteString(")")
	}
	return b.String()
}

// Unwrap returns the errors of the nodes, and, if the graph was stopped, ErrFlushed and
// the cause if there is one.
func (e *RunError) Unwrap() []error {
	list := make([]error, 0, len(e.Failed)+1)
	for _, n := range e.Failed {
		list = append(list, n)
	}
	if e.Stopped {
		list = append(list, ErrFlushed)
		if e.Cause != nil {
			list = append(list, e.Cause)
		}
	}
	return list
}
