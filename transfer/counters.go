package transfer

import (
	"iter"
	"strings"

	"github.com/verbena-rdma/verbena/internal/counters"
	"github.com/verbena-rdma/verbena/metrics"
)

// Counters count what an agent has done since it was opened, and what it has to do.
type Counters struct {
	Items    uint64 `counter:"items" help:"items that have ended"`
	Failed   uint64 `counter:"items_failed" help:"items that have failed"`
	Bytes    uint64 `counter:"item_bytes" unit:"bytes" help:"bytes of items that have succeeded"`
	Repeated uint64 `counter:"pieces_repeated" help:"pieces of items that were given to a device again"`
	Dials    uint64 `counter:"dials" help:"attempts to connect"`
	Lost     uint64 `counter:"connections_lost" help:"connections that ended by a failure"`
	Refused  uint64 `counter:"refused" help:"requests and acceptances that broke the protocol, or came too late"`

	CacheHits      uint64 `counter:"cache_hits" help:"slices that were found in the cache"`
	CacheMisses    uint64 `counter:"cache_misses" help:"slices that had to be registered for the cache"`
	CacheEvictions uint64 `counter:"cache_evictions" help:"slices that were taken out of the cache"`
	CacheBytes     uint64 `gauge:"cache_bytes" unit:"bytes" help:"memory that the cache keeps registered"`

	Peers        uint64 `gauge:"peers" help:"peers that were dialled and are not closed"`
	Pending      uint64 `gauge:"items_pending" help:"items that have not ended; a look-up of segments is one"`
	InFlight     uint64 `gauge:"pieces_in_flight" help:"pieces of items that the devices have"`
	ToRepeat     uint64 `gauge:"pieces_to_repeat" help:"pieces of items that wait for another connection, because theirs has ended"`
	Dialling     uint64 `gauge:"dials_in_progress" help:"connections that are being made"`
	DialsWaiting uint64 `gauge:"dials_waiting" help:"connections that wait until fewer are being made"`
}

// Counters returns the present counters.
func (a *Agent) Counters() Counters {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.counters
	c.Peers = uint64(len(a.peers))
	for _, d := range a.devices {
		c.InFlight += uint64(d.inFlight)
	}
	c.ToRepeat = uint64(a.pieces) - c.InFlight
	c.Dialling = uint64(a.dialing[0] + a.dialing[1])
	c.DialsWaiting = uint64(a.toDial[0].Len() + a.toDial[1].Len())
	return c
}

// Metrics implements metrics.Source: the agent, then the context of each device, which knows how many connections are
// ready, with its connections if each is set.
func (a *Agent) Metrics(each bool) iter.Seq[metrics.Object] {
	return func(yield func(metrics.Object) bool) {
		var names []string
		for _, d := range a.devices {
			names = append(names, d.device.Name())
		}
		if !yield(metrics.Object{Kind: "agent", Device: strings.Join(names, ","), Counters: counters.Of(a.Counters())}) {
			return
		}
		for _, d := range a.devices {
			for o := range d.transport.Metrics(each) {
				if !yield(o) {
					return
				}
			}
		}
	}
}
