package etcd

const (
	// severalKeys is why a transaction that writes several keys is refused, and why others take several revisions.
	severalKeys = "each write of a key is a revision of its own, so that a transaction writes one key at most"
	// pages is why a history comes in other responses.
	pages = "a watch reads the past in pages of bounded size, each with the revision up to which it is complete; no " +
		"revision is divided"
)

// differences are the answers in which byre etcd differs from etcd, by line and question, with the reason. A name that
// ends in * is the beginning of several questions. What begins with "not yet" is a fault.
var differences = map[string]string{
	"1. two range deletes over each other":     severalKeys,
	"2. three puts*":                           severalKeys,
	"2. delete, put, delete a range*":          severalKeys,
	"2. range delete*":                         "not yet: a DeleteRange of several keys is refused",
	"6. 128 puts":                              severalKeys,
	"8. delete everything":                     "not yet: as the range delete of line 2",
	"9. a key of 1 KiB":                        "not yet: the bound on a key is less than the message says",
	"9. a key of 1 KiB + 1":                    "sqlstore.MaxKeyBytes: the databases index keys",
	"9. a key of 1 MiB":                        "sqlstore.MaxKeyBytes: the databases index keys",
	"11. delete of a range of one":             severalKeys,
	"19. CREATE NONE":                          "etcd sorts inside each message of a stream",
	"19. MOD NONE":                             "as CREATE NONE",
	"25. history, 100 of 100 KiB":              pages,
	"25. fragments, 100 of 100 KiB":            pages,
	"25. history, 2,500":                       pages,
	"25. one revision of three*":               severalKeys,
	"32. revisions of three keys":              severalKeys,
	"32. the lease":                            severalKeys,
	"34. how it ends":                          "byre ends with exit status 0 after SIGTERM, as its other servers do",
	"37. unknown in a transaction after a put": severalKeys,
	"38. revoke with three keys":               severalKeys,
	"38. events of three keys":                 severalKeys,
	"38. keys after it":                        severalKeys,
	"40. downgrade, validate 3.6":              "a downgrade of etcd's storage says nothing about byre's",
	"42. *":                                    "not yet: no flag --quota-backend-bytes",
}
