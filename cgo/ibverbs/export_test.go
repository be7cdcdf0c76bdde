//go:build linux && cgo && verbs

package ibverbs

import "github.com/verbena-rdma/verbena/verbs"

// OpenExtended opens an adapter on which all queues are polled by ibv_start_poll, and all
// queue pairs posted to by ibv_wr_start.
func OpenExtended(name string) (verbs.Device, error) {
	d, err := Driver{}.Open(name)
	if err != nil {
		return nil, err
	}
	d.(*device).extended = true
	return d, nil
}
