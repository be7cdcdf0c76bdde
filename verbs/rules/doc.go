// Package rules checks requests against the rules of the InfiniBand specification that hold
// for every device: which attributes a queue pair takes in a transition, which operations a
// transport service has, which memory can be registered, and with which access rights. All
// drivers use it, so that they refuse the same request with the same words. What one device
// lacks, such as atomics, its driver refuses itself.
package rules
