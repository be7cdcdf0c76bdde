// Package hosts has where the two ends of a measurement run: on this machine, or in two
// network namespaces with a cable between them. Linux only.
package hosts
