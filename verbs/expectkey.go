package verbs

// ExpectKeyQP is a queue pair that bounds the number of remote keys that its peer's host can
// try. Those of the software device do: after too many failed tries, they delay requests of
// the host with keys that its connection has not used before.
type ExpectKeyQP interface {
	// ExpectKey says that the peer has been given a key, so that requests with it are never
	// delayed. It holds for the key of the last call, until the queue pair is closed.
	ExpectKey(rkey uint32) error
}
