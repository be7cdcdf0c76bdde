// Package admission decides which packets a device takes, from which source, and how often.
//
// The data path asks twice for each packet: [Source.Admit] before the checksum is computed, and
// [Source.Learn] after it. Messages to queue pair 1 go by [Messages] instead, remote keys by
// [Keys], and what a source sends in vain is dropped by the system in the end: [Entry]. Numbers
// and keys that nobody can guess come from [Numbers] and [Random].
//
// Nothing here allocates or waits for each packet. Unless a method says otherwise, the caller
// holds the lock of a shard for what reads, and the locks of all shards for what changes.
package admission
