// Package hosts provides the hosts for the two ends of a measurement: this machine, or two
// network namespaces with a cable between them. Linux only.
package hosts
