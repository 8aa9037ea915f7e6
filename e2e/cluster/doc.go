// Package cluster fills a server with objects of all kinds that its discovery names, and
// compares what two servers show, object by object.
package cluster
