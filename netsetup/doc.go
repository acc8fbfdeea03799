// Package netsetup keeps the host as the daemon wants it: a link that carries
// the local IPs, netfilter rules that keep their traffic out of connection
// tracking and of kube-proxy's NAT, and rules in the host firewall's own chains
// that let it pass.
//
// # Addresses
//
// The local IPs sit on a dummy link, as /32 and /128, scope global. Where the
// kernel has no dummy driver they sit on lo. Loopback addresses (127.0.0.0/8,
// ::1) need no setup and are left alone.
//
// # Ownership
//
// A process is told apart by its generation. The dummy link carries it in its
// alias; an address on lo carries a 24-bit digest of it in its route metric
// (IFA_RT_PRIORITY), which the kernel keeps for both families and does not use
// for an address that has no prefix route; the nftables table and each rule in a
// chain of others carry it in a rule comment. The marks live in the kernel, so that they last exactly as long
// as what they mark: nothing is kept on disk. Ensure… overwrites the mark of
// another generation (adopts); Remove… removes only what still carries its own.
// A Host that finds its place taken by another generation that runs stands
// down: its Watch repairs nothing until the other one, or its marks, are gone.
//
// The newer one may end first: its start fails, or it is rolled back. So each
// Host holds, from Ensure… to Remove… or Close, an abstract unix socket per
// object, named nodens-addresses-DIGEST and nodens-rules-DIGEST after its
// generation's digest. Ensure… remembers whose mark it overwrites. Remove… finds
// by the socket whether that one still wants the object, and if so writes its
// mark back and removes nothing but the addresses that it added itself; the
// other's Watch sees the mark and goes on.
//
// Processes change the link and the addresses one at a time: each holds the
// abstract unix socket nodens-addresses-turn meanwhile. So none removes what
// another has adopted since it looked.
//
// A newer process that is killed hands nothing back; the older one finds its
// socket gone at one full check and still gone at the next, and takes the marks
// back itself.
//
// Not covered: Of a row of processes each
// remembers only the one before it, so with three the oldest gets nothing back
// unless they end from the newest down. Local IPs that only the older one wants
// are missing from the adoption until its Watch repairs after the hand-back. Two
// generations of one digest are taken for each other. A third process that
// adopts in the instant of a hand-back may see its mark overwritten.
package netsetup
