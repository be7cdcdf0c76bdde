// Package efa is what Amazon's EFA has beside the verbs, by libefa: queue pairs of SRD,
// completion queues that tell who has sent a message, numbers of address handles
// (efadv(7)). Package ibverbs opens the devices. It is empty without the build tag
// "verbs".
//
// The library is loaded when the first EFA is opened. What newer versions of it have is
// declared here, so that the headers of older ones do, and is asked of the library at run
// time.
//
// No EFA was there to test this with. The tests call a library of their own in its place,
// and compare the declarations with those of the system's header.
package efa
