// Package hosts makes the places where the two ends of a measurement run: this machine, or two
// network namespaces with a cable between them. Linux only.
package hosts
