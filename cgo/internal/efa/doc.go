// Package efa provides the functions of Amazon's EFA that the verbs lack, through libefa: SRD
// queue pairs, completion queues that report the sender of a message, and numbers of address
// handles (efadv(7)). Package ibverbs opens the devices. The package is empty without the build
// tag "verbs".
//
// The library is loaded when the first EFA is opened. Functions of newer versions of libefa are
// declared here, so that headers of older versions suffice, and are looked up in the library at
// run time.
//
// The package was not tested on an EFA: none was available. The tests call a library of their
// own in place of libefa, and compare the declarations with those of the system's header.
package efa
