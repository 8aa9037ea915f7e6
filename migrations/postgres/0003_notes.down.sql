-- The table stays, with what servers have noted: programs that do not know it leave it alone.
SELECT 1;
