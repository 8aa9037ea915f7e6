// Package inprocess is byre's storage API with its feed and its cache of representations,
// without the servers above them, for the same traffic and the same judgement as the
// processes get. Its tests put faults between the layers, by what the layers are given:
// a driver, a Publish function, a format's encoder. The judgement must find each.
package inprocess
