// Package unixsocket has Unix sockets of Linux that processes of any user can connect to.
//
// Such a process can send files (SCM_RIGHTS) that take long to close, such as a TCP socket with
// SO_LINGER and unsent data. Closing a Unix socket closes the files in its queue too. So sockets
// refuse files until [AllowFiles], which takes Linux 6.16. On older systems, [Close] closes such files
// in the background, as long as they are few.
package unixsocket
