package verbs

// ExpectKeyQP is a queue pair that bounds how many remote keys the host of its peer can try.
// Those of the software device are: a host that has tried too many in vain waits with keys
// that its connection has not used before.
type ExpectKeyQP interface {
	// ExpectKey says that the peer has been given a key, so that it never waits with it. It
	// holds for the last key that it was called with, until the queue pair is closed.
	ExpectKey(rkey uint32) error
}
