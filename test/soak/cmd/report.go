package main

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/verbena-rdma/verbena/test/traffic"
)

// total returns what has been done so far by the server and by its clients.
func (c *controller) total() (server, clients stats, rss int64) {
	c.mu.Lock()
	clients = c.endedStats
	var list []*child
	for p := range c.runningClients {
		list = append(list, p)
	}
	c.mu.Unlock()
	for _, p := range list {
		p.mu.Lock()
		clients.add(&p.stats)
		p.mu.Unlock()
	}
	if c.server != nil {
		c.server.mu.Lock()
		server, rss = c.server.stats, c.server.rss
		c.server.mu.Unlock()
	}
	return server, clients, rss
}

// progress prints a line about the progress.
func (c *controller) progress() {
	server, clients, rss := c.total()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.print("%v %d connections, %d processes, %d kills, %d stops, %d fault changes, %d operations, %s; the server has %d links, %s resident",
		time.Since(c.began).Round(time.Second), server.Connections, c.started, c.kills, c.stops, c.faults,
		server.Total()+clients.Total(), amount(server.Bytes+clients.Bytes), server.Links, amount(uint64(rss)))
}

// table prints the report.
func (c *controller) table() {
	server, clients, _ := c.total()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.printing.Lock()
	defer c.printing.Unlock()
	w := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	defer func() { _ = w.Flush() }()
	row := func(name string, values ...any) {
		_, _ = fmt.Fprint(w, name)
		for _, v := range values {
			_, _ = fmt.Fprintf(w, "\t%v", v)
		}
		_, _ = fmt.Fprintln(w)
	}
	row("")
	row("seed", c.o.seed)
	row("time", time.Since(c.began).Round(time.Second))
	row("client processes", c.started)
	row("connections made", server.Connections)
	row("ended in the middle by the client", server.Abrupt)
	row("processes killed", c.kills)
	row("processes stopped", c.stops)
	row("sessions failed because of these", c.sessions)
	row("fault changes", c.faults)
	row("quiet points", len(c.points))
	row("failures", len(c.failures))
	row("")
	row("", "by clients", "by the server")
	for op, name := range traffic.OpNames {
		if n, m := clients.Ops[op], server.Ops[op]; n+m > 0 {
			row(name, n, m)
		}
	}
	row("all operations", clients.Total(), server.Total())
	row("bytes moved", amount(clients.Bytes), amount(server.Bytes))
	row("messages of the peer checked", clients.Verified, server.Verified)
	row("datagrams lost", clients.Lost, server.Lost)
	if len(c.points) > 0 {
		first, last := c.points[0], c.points[len(c.points)-1]
		row("")
		row("quiet points", "first", "last", "most")
		row("at", first.at.Round(time.Second), last.at.Round(time.Second))
		for i, p := range append([]*child{c.server}, c.steady...) {
			name := p.name
			if p != c.server {
				name += " (" + p.service.name + ")"
			}
			most := func(of func(*resources) int64) (n int64) {
				for j := range c.points {
					n = max(n, of(&c.points[j].held[i]))
				}
				return n
			}
			a, b := &first.held[i], &last.held[i]
			row(name+": heap", amount(uint64(a.Heap)), amount(uint64(b.Heap)), amount(uint64(most(func(h *resources) int64 { return h.Heap }))))
			row("  resident", amount(uint64(a.RSS)), amount(uint64(b.RSS)), amount(uint64(most(func(h *resources) int64 { return h.RSS }))))
			row("  goroutines", a.Goroutines, b.Goroutines, most(func(h *resources) int64 { return int64(h.Goroutines) }))
			row("  open files", a.Files, b.Files, most(func(h *resources) int64 { return int64(h.Files) }))
			row("  shared mappings", a.Mappings, b.Mappings, most(func(h *resources) int64 { return int64(h.Mappings) }))
			row("  connections", a.Links, b.Links, most(func(h *resources) int64 { return int64(h.Links) }))
		}
	}
}
