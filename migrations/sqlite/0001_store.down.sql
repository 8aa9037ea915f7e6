DROP VIEW history;
DROP TABLE changes;
DROP TABLE objects;
DROP TABLE counters;
