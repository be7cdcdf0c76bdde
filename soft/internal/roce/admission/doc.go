// Package admission decides which packets, connection-management messages and guesses at keys
// a device accepts, from which source, and how often; package roce drops and counts the rest.
//
// The data path asks twice for each packet: [Source.Admit] before the checksum is computed,
// and [Source.Learn] after it. [MADs] handles messages to queue pair 1 instead, and [Keys]
// remote keys. If a source keeps sending packets that are refused, the system drops them:
// [Entry]. Unpredictable numbers and keys come from [Numbers] and [Random].
//
// No method allocates or waits for each packet. Unless noted otherwise, the caller holds the
// lock of a shard to read, and the locks of all shards to change.
package admission
