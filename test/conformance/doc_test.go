// Package conformance holds nodens to the rows of rows.txt: what RFCs ask of a
// forwarding cache and what others got wrong.
//
// Most rows are scenarios, testdata/ROW-what.txtar: a Corefile, the replies of
// scripted upstreams and a list of steps that are played against the real
// binary, whose clock a step moves. The row is what stands before the first
// hyphen. The sections are:
//
//	-- Corefile --             # the daemon is asked on 127.0.0.1:53
//	-- upstream IP [STATE] --  # rules of the server IP:53, in the given state
//	-- steps --
//
// A rule begins with "match NAME TYPE [udp|tcp] [edns] [do] [cd] [ad] [nth=N]"; NAME and
// TYPE may be *, nth counts the queries that the rest fits. The first rule that
// fits a query is its answer, and a query that none fits is refused. The lines
// below the match say what to reply:
//
//	rcode RCODE                       # NOERROR if left out
//	flags FLAG…                       # aa tc ra ad; ra if left out
//	answer|authority|additional RR    # one record in master file form
//	bare                              # the header, and nothing else
//	noopt                             # no OPT record though asked with one
//	ede CODE [TEXT]                   # an extended error in the OPT record
//	option CODE:HEX                   # any other option of the OPT record
//	first BAD                         # before the reply, one that must not count:
//	                                  # id question class port garbage empty
//	twice                             # the reply is sent twice
//	drop                              # no reply
//	close                             # TCP: close the connection in the middle of the reply
//	reset                             # the same with a reset
//
// Steps, one a line, with what is expected indented below:
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
//	  within N               # octets of the reply
//	advance DURATION         # moves the daemon's clock
//	down IP, up IP           # closes and opens the upstream's sockets
//	use IP STATE             # changes the upstream's rules
//	asked IP NAME TYPE N     # how many queries it has seen so far
//	seen IP NAME TYPE …      # of the last of these queries: udp|tcp, do|nodo,
//	                         # cd|nocd, ad|noad, rd, edns=SIZE, options=none|CODE…
package conformance
