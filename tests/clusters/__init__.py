"""The clusters that the tool is tested on, and what they are held to; see README.md beside this folder."""
