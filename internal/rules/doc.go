// Package rules checks requests against the rules of the InfiniBand specification that hold
// for every device: the attributes of each transition of a queue pair, the operations of each
// transport service, and the memory and access rights that can be registered. All drivers use
// it, so they refuse the same request with the same error. A driver itself refuses requests
// for what its device lacks, such as atomics.
package rules
