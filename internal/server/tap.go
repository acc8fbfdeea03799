package server

import (
	"time"

	"github.com/nodens-dns/nodens/internal/upstream"
)

// tap passes t a message between q's client and the server. replied is zero for a query.
func (q *Query) tap(t upstream.Tap, replied time.Time, wire []byte) {
	m := upstream.TapMessage{TCP: q.tcp, Client: q.client, Queried: q.start, Replied: replied, Wire: wire}
	if local := q.zone.table.local; local.Addr().Is4() == q.client.Addr().Is4() {
		m.Server = local
	}
	t(m)
}
