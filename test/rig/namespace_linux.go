package rig

import "github.com/verbena-rdma/verbena/test/netns"

// InNamespace calls do in the network namespace of that name, such as s. It is for tests that
// run in the guest. Sockets stay in the namespace where they were made.
func InNamespace(name string, do func() error) error { return netns.In("/run/netns/"+name, do) }
