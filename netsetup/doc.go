// Package netsetup keeps the host as the daemon needs it: a link with the local
// IPs, netfilter rules that exempt their traffic from connection tracking and
// from kube-proxy's NAT, and accept rules in host firewalls that drop.
//
// # Addresses
//
// The local IPs are on a dummy link, as /32 and /128, scope global. If the
// kernel has no dummy driver, they are on lo. Loopback addresses (127.0.0.0/8,
// ::1) need no setup.
//
// # Ownership
//
// Each process has a generation, and marks each object that it sets up with this
// generation. The dummy link has the mark in its alias. An address on lo has a
// 24-bit digest of it in its route metric (IFA_RT_PRIORITY). The kernel keeps the
// metric for both families, and does not use it for an address without a prefix
// route. The nftables table and each rule in a chain of another program have it in a
// rule comment. The marks are in the kernel and last as long as the marked objects.
// Nothing is stored on disk. Ensure overwrites the mark of another generation
// (adopts). Remove deletes only what still has its own mark. If another running
// generation has adopted an object, Watch does not repair it until that process, or
// its mark, is gone.
//
// The newer process may end first, if its start fails or it is rolled back. So each
// process holds an abstract unix socket per object, from Ensure to Remove or Close,
// named nodens-OBJECT-DIGEST. Ensure remembers which process's mark it overwrites.
// Remove looks for the socket of that process. If it exists, Remove writes the mark
// back and deletes only the addresses that it added itself. The other process's
// Watch sees the mark and repairs again.
//
// Processes change the link and the addresses one at a time, under the abstract unix
// socket nodens-addresses-turn. So no process deletes an object that another process
// adopts between the first one's read of the mark and the deletion.
//
// A killed process hands nothing back. The older process finds its socket gone,
// waits a few seconds and takes the objects back itself.
//
// Limits: Each process remembers only its direct predecessor. Of three
// processes, the oldest gets the objects back only if the newest ends first.
// Local IPs that only the older process wants are missing from the adoption
// until its Watch repairs after the hand-back. Two generations with the same
// digest count as one. If a third process adopts while an object is handed back,
// its mark may be overwritten.
package netsetup
