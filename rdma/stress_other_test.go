//go:build !linux

package rdma_test

// sleepUntil polls: there is no descriptor to wait for.
func (s *stress) sleepUntil(done func(events int) bool) { s.pollUntil(done) }
