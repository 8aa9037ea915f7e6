// Package inprocess runs byre's storage API with its feed and its cache of
// representations, without the servers above them, under the same traffic and the same
// check as the processes. Its tests inject bugs between the layers, through what the
// layers are given: a driver, a Publish function, a format's encoder. The check must find
// each bug.
package inprocess
