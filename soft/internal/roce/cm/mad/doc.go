// Package mad reads and writes the management datagrams (MADs) of connection
// management (InfiniBand Architecture Specification volume 1, "IBTA" below: the
// header in 13.4.2, the messages in 12.6, 12.8 and 12.11), and the header that
// RDMA CM puts in front of the private data of REQ and SIDR_REQ (annex A11).
//
// Every message is a struct with a method Encode, which writes all 256 bytes of a MAD, and a
// method Decode, which checks the whole header and all lengths. Decode accepts any bytes and
// never panics. It does not check values that a field can hold but that have no meaning, such
// as an unknown reason. As the standard requires, reserved fields are sent as zero and ignored
// when received.
//
// Private data has no length on the wire: a receiver gets all the bytes that the message has
// room for, with zeros after those that were sent.
//
// The package has no state. After a call, only the slices of a decoded message (PrivateData,
// Info) refer to the caller's memory.
package mad
