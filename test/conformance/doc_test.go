// Package conformance tests nodens against the rows of rows.txt: requirements of
// RFCs on a forwarding cache, and faults that other servers had.
//
// Most rows are scenarios, testdata/ROW-what.txtar: a Corefile, the replies of
// scripted upstreams and a list of steps. The steps run against the real binary,
// and a step can move its clock. The row is the part before the first hyphen. The
// sections are:
//
//	-- Corefile --             # the daemon serves 127.0.0.1:53
//	-- upstream IP [STATE] --  # rules of the server IP:53, in the given state
//	-- steps --
//
// A rule begins with "match NAME TYPE [udp|tcp] [edns] [do] [cd] [ad] [nth=N]".
// NAME and TYPE may be *, and nth is the number of the query among those that
// match the rest. The first matching rule gives the reply. A query that no rule
// matches gets REFUSED. The lines below the match describe the reply:
//
//	rcode RCODE                       # NOERROR if left out
//	flags FLAG…                       # aa tc ra ad; ra if left out
//	answer|authority|additional RR    # one record in master file form
//	bare                              # the header, and nothing else
//	noopt                             # no OPT record, even if the query has one
//	ede CODE [TEXT]                   # an extended error in the OPT record
//	option CODE:HEX                   # any other option of the OPT record
//	first BAD                         # before the reply, send an invalid one:
//	                                  # id question type class port garbage empty
//	twice                             # send the reply twice
//	drop                              # no reply
//	close                             # TCP: close the connection after half of the reply
//	reset                             # the same with a reset
//
// A step is a line. The lines indented below it are what the reply must have:
//
//	ask NAME TYPE [tcp] [do] [cd] [ad] [nord] [edns[=SIZE]] [class=CLASS]
//	    [opcode=N] [version=N] [z] [zflags=HEX] [option=CODE:HEX]… [options=CODExN]
//	        # the reply must repeat ID, opcode and question, case included, have
//	        # RA, no reserved flag of the header or of OPT, and EDNS version 0
//	  rcode RCODE
//	  flags FLAG…            # all of aa tc rd ra ad cd that are set
//	  answer RR | answer none  (authority, additional likewise)
//	  truncated N            # TC, N records in the answer section
//	  opt size=N | opt none
//	  options CODE… | options none
//	  ede CODE | ede none
//	  within N               # size of the reply in octets
//	advance DURATION         # moves the daemon's clock
//	down IP, up IP           # closes and opens the upstream's sockets
//	use IP STATE             # changes the upstream's rules
//	asked IP NAME TYPE N     # it has received N such queries so far
//	seen IP NAME TYPE …      # the last of these queries has: udp|tcp, do|nodo,
//	                         # cd|nocd, ad|noad, rd, edns=SIZE, options=none|CODE…
package conformance
